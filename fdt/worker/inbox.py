"""Puts a worker's instructions in order: some come by the pool's stream, and small ones directly from the client."""

import collections
import contextlib
import os
import queue
import select
import time

from fdt.errors import ProtocolError
from fdt.transport import wire
from fdt.transport.direct import Connection, Listener
from fdt.v1 import worker_pb2

_Message = worker_pb2.WorkerInstruction | None
# The most instructions that are taken from the client's connection before their turn.
_MAX_EARLY = 256


class Inbox:
    """Instructions in the order of their numbers. Any thread may put one in; one thread takes them."""

    def __init__(self, listener: Listener | None = None) -> None:
        """
        Args:
            listener: Where the client may connect; None if it speaks to the pool alone.
        """
        self._listener = listener
        self._direct: Connection | None = None
        # What the pool's stream has brought, None for its end; and what came directly.
        self._from_pool: collections.deque[_Message] = collections.deque()
        self._from_client: collections.deque[worker_pb2.WorkerInstruction] = collections.deque()
        # The number of the next instruction.
        self._next = 1
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def direct(self) -> Connection | None:
        """The connection to the client; None if there is none."""
        return None if self._direct is None or self._direct.is_over else self._direct

    def put(self, message: _Message) -> None:
        """Adds what the pool's stream has brought; None at its end."""
        self._from_pool.append(message)
        os.eventfd_write(self._wake, 1)

    def get(self, limit_s: float | None = None) -> _Message:
        """Returns the next instruction, or None at the end of the pool's stream.

        Raises:
            queue.Empty: Nothing came within `limit_s`.
            ProtocolError: The next instruction is missing.
        """
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self._read()
            for waiting in (self._from_pool, self._from_client):
                while waiting and self._is_known(waiting[0]):
                    waiting.popleft()
                if waiting and self._is_next(waiting[0]):
                    return waiting.popleft()
            if self._from_pool and self._from_client:
                raise ProtocolError(f"An instruction is missing. Expected: number={self._next}")
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise queue.Empty
            self._wait(left_s)

    def _is_known(self, message: _Message) -> bool:
        """Whether an instruction has come before: after an interrupt the client sends the last one once more."""
        return message is not None and 0 < message.instruction.number < self._next

    def _is_next(self, message: _Message) -> bool:
        number = message.instruction.number if message is not None else 0
        # Where nothing comes directly, the stream's order is all there is.
        if number and number != self._next and self._direct is not None:
            return False
        self._next = number + 1 if number else self._next
        return True

    def _read(self) -> None:
        """Takes what has come directly."""
        if self._direct is None and self._listener is not None:
            self._direct = self._listener.accept()
        while self._direct is not None and len(self._from_client) < _MAX_EARLY:
            raw = self._direct.receive()
            if raw is None:
                return
            self._from_client.extend(wire.decode(worker_pb2.WorkerInstructions, raw).instructions)

    def _wait(self, limit_s: float | None) -> None:
        """Waits until something may have come."""
        readable = select.poll()
        readable.register(self._wake, select.POLLIN)
        source = self._listener if self._direct is None else self.direct
        if source is not None and len(self._from_client) < _MAX_EARLY:
            readable.register(source, select.POLLIN)
        readable.poll(None if limit_s is None else max(1, round(limit_s * 1000)))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
