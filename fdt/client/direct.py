"""A job's direct connections to its workers, if these belong to the run's own pool.

Small instructions and their answers go this way, which is shorter than by the control process: no thread of gRPC's takes part,
and the thread that waits for an answer takes it from the socket itself. All others go by the pool, which must know of them.
Each instruction has a number, and workers take them in this order.
"""

import collections
import contextlib
import functools
import itertools
import os
import select
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from fdt.pool.relay import wrapped
from fdt.transport import wire
from fdt.transport.direct import MAX_BYTES, Connection, connected
from fdt.transport.drained import Answers, only_rows
from fdt.v1 import job_pb2, worker_pb2

_MESSAGE_TAG = bytes((worker_pb2.WorkerInstructions.INSTRUCTIONS_FIELD_NUMBER << 3 | 2,))
_NUMBER_TAG = bytes((job_pb2.Instruction.NUMBER_FIELD_NUMBER << 3,))
# Leaves room for the number, and for the messages around an instruction.
_MAX_INSTRUCTION_BYTES = MAX_BYTES - 64
# Kinds of instructions that no worker gets.
_OF_POOL = ("open", "fetched", "shown")
# Seconds between two looks at the job while a worker has no room for an instruction.
_LOOK_S = 1.0

Handle = Callable[[job_pb2.Event], None]


class Direct:
    """Connections to the processes of one job, and of each that replaces it; in other pools than the run's own there are none.

    One thread sends at a time. Any thread may wait for events; one at a time takes them, for all.
    """

    def __init__(self, folder: Path | None) -> None:
        """
        Args:
            folder: Holds the workers' folders; None if they are not of the run's own pool.
        """
        self._folder = folder
        self._connections: list[Connection] = []
        # The number of the last instruction that the present job's workers have all been sent, either way.
        self._number = 0
        # Instructions that not all workers have been sent: their numbers, and messages, or what sends them by the pool. An
        # interrupt of the script's may come at any time; what it left undone is sent before the next one, perhaps once more.
        self._unsent: collections.deque[tuple[int, bytes | Callable[[], None]]] = collections.deque()
        # Held by the thread that takes events, whose id is `_taker`.
        self._taking, self._taker = threading.RLock(), 0
        # By serial number of the drain, what workers have answered so far.
        self._answers: dict[int, Answers] = {}
        # Events that nobody has handled yet, with their workers' ranks: no more than answers to what was sent.
        self._came: collections.deque[tuple[int, bytes]] = collections.deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def is_connected(self) -> bool:
        """Whether instructions can go this way."""
        return bool(self._connections)

    def connect(self, processes: Sequence[str]) -> None:
        """Connects to all processes of a job, named by rank, or to none."""
        if self._folder is None:
            return
        found: list[Connection] = []
        try:
            for name in processes:
                found.append(connected(self._folder / name))
        except OSError:
            for connection in found:
                connection.close()
            return
        self._connections = found

    @property
    def holds(self) -> bool:
        """Whether an instruction waits for others; see `send`."""
        return bool(self._unsent)

    def send_by(
        self, put: Callable[[job_pb2.Instruction], None], instruction: job_pb2.Instruction, check: Callable[[], None]
    ) -> None:
        """Sends an instruction by the pool, numbered; the given one stays as it is, for a job that may replace this one.

        Args:
            put: Queues it for the pool.
            instruction: The instruction.
            check: See `send`.
        """
        if self._folder is None or instruction.WhichOneof("kind") in _OF_POOL:
            put(instruction)
            return
        sent = job_pb2.Instruction()
        sent.CopyFrom(instruction)
        sent.number = self._next()
        self._unsent.append((sent.number, functools.partial(put, sent)))
        self.flush(check)

    def send(self, instruction: job_pb2.Instruction, check: Callable[[], None], more_follows: bool = False) -> bool:
        """Sends an instruction that names no blobs to all workers; waits while one has no room.

        Args:
            instruction: The instruction.
            check: Called now and then while it waits; raises the job's error.
            more_follows: Whether it may wait, until `flush`, for the next one, to go with it in one message: each message wakes
                a process.

        Returns:
            Whether it was sent, or will be; not if it is too large, or there is no connection.
        """
        if not self._connections or instruction.ByteSize() > _MAX_INSTRUCTION_BYTES:
            return False
        number = self._next()
        message = wrapped(instruction.SerializeToString() + _NUMBER_TAG + wire.varint(number))
        self._unsent.append((number, _MESSAGE_TAG + wire.varint(len(message)) + message))
        if not more_follows:
            self.flush(check)
        return True

    def flush(self, check: Callable[[], None]) -> None:
        """Sends what is not sent yet; workers leave out what they have. See `send`."""
        while self._unsent:
            number, first = self._unsent[0]
            count = 1
            if isinstance(first, bytes):
                messages, size = [first], len(first)
                for following, message in itertools.islice(self._unsent, 1, None):
                    if not isinstance(message, bytes) or size + len(message) > MAX_BYTES:
                        break
                    number, size = following, size + len(message)
                    messages.append(message)
                self._transmit(b"".join(messages), check)
                count = len(messages)
            else:
                first()
            self._number = number
            for _ in range(count):
                self._unsent.popleft()

    def _next(self) -> int:
        return (self._unsent[-1][0] if self._unsent else self._number) + 1

    def _transmit(self, raw: bytes, check: Callable[[], None]) -> None:
        for connection in list(self._connections):
            while not connection.send(raw):
                # A worker that finds no room for an answer takes no instruction.
                self._alone(self._read)
                self._wait(_LOOK_S, until_room=connection)
                check()

    def ask(self, drain: job_pb2.Drain, check: Callable[[], None]) -> bool:
        """Requests state that is small; see `send`."""
        asked = job_pb2.Drain()
        asked.CopyFrom(drain)
        asked.direct = True
        self._answers[drain.serial] = Answers()
        is_sent = self.send(job_pb2.Instruction(drain=asked), check)
        if not is_sent:
            del self._answers[drain.serial]
        return is_sent

    def take(self, limit_s: float, handle: Handle) -> bool:
        """Handles the events that have come; waits, if there are none, until there are, or `wake` is called, or for `limit_s`.

        Returns:
            Whether it did; another thread may be doing so.
        """
        return self._alone(functools.partial(self._take, limit_s, handle))

    def _take(self, limit_s: float, handle: Handle) -> None:
        self._taker = threading.get_ident()
        try:
            self._read()
            if not self._came and limit_s:
                self._wait(limit_s)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                self._read()
            self._handle(handle)
        finally:
            self._taker = 0

    def _alone(self, do: Callable[[], None]) -> bool:
        """Calls `do`, unless another thread takes events; returns whether it did.

        An interrupt may come between the lock and the next line of Python, so that it is the lock that knows its owner.
        """
        try:
            if not self._taking.acquire(blocking=False):
                return False
            do()
            return True
        finally:
            try:  # noqa: SIM105 - a call of `suppress` would let an interrupt in
                self._taking.release()
            except RuntimeError:  # another thread's
                pass

    def wake(self) -> None:
        """Has another thread that waits, or is about to, look again."""
        if self._connections and self._taker != threading.get_ident():
            os.eventfd_write(self._wake, 1)

    def end(self, handle: Handle) -> None:
        """Handles the last events of a job that is over, and closes its connections. Nobody may send meanwhile."""
        self.wake()
        with self._taking:
            self._read()
            self._handle(handle)
            for connection in self._connections:
                connection.close()
            self._connections, self._answers = [], {}

    def begin(self) -> None:
        """Numbers the instructions of another job."""
        self._number = 0
        self._unsent.clear()

    def _wait(self, limit_s: float, until_room: Connection | None = None) -> None:
        """Waits until something has come, or `wake` is called; or until there is room for an instruction."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for connection in self._connections:
            if not connection.is_over:
                poll.register(connection, select.POLLIN | (select.POLLOUT if connection is until_room else 0))
        poll.poll(limit_s * 1000)

    def _read(self) -> None:
        """Takes what has come from the sockets."""
        for rank, connection in enumerate(self._connections):
            while (raw := connection.receive()) is not None:
                self._came.append((rank, raw))

    def _handle(self, handle: Handle) -> None:
        while self._came:
            # Taken away once it is handled: an interrupt of the script's may come before. A signal handler of the script's that
            # waits for an answer takes events, too, this one again among them.
            first = self._came[0]
            self._handle_one(*first, handle)
            if self._came and self._came[0] is first:
                self._came.popleft()

    def _handle_one(self, rank: int, raw: bytes, handle: Handle) -> None:
        """Handles an event; of the answers of all workers to one question, the last one, with all of them together."""
        event = wire.decode(job_pb2.Event, raw)
        if not event.HasField("drained"):
            handle(event)
            return
        answers = self._answers.get(event.drained.serial)
        if answers is None:
            return
        if rank:
            only_rows(event.drained)
        answers.add(rank, event.drained)
        if answers.count == len(self._connections):
            handle(answers.event())
            self._answers.pop(event.drained.serial, None)
