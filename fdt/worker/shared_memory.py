"""Gives the processes of a job that are on one machine memory that they share, and no other process.

A sandboxed worker can open no file and reach no socket that others could too. So its fork server makes the memory, and gives it
to each of its workers that names the same key, which only the processes of one job know.
"""

import dataclasses
import fcntl
import functools
import json
import os
import secrets
import selectors
import socket

# What the memory begins with: random, so that processes can tell whether they got the same.
ID_BYTES = 32
# The most bytes that one memory has, and the most that a worker may ask for.
_MOST_BYTES, _MOST_KEYS = 1 << 30, 16
_MAX_REQUEST_BYTES = 4096
_ANSWER_S = 30.0


@dataclasses.dataclass
class _Memory:
    descriptor: int
    num_bytes: int
    # The workers that have it.
    workers: set[int] = dataclasses.field(default_factory=set)


class Memories:
    """The fork server's side: the memories of its workers."""

    def __init__(self, readable: selectors.BaseSelector) -> None:
        """
        Args:
            readable: Waits for requests, and calls what is registered with them.
        """
        self._readable = readable
        self._memories: dict[str, _Memory] = {}
        self._connections: dict[int, socket.socket] = {}

    def connect(self, pid: int, connection: socket.socket) -> None:
        """Serves a worker process, which has the other end of a connection."""
        connection.setblocking(False)
        self._connections[pid] = connection
        self._readable.register(connection, selectors.EVENT_READ, functools.partial(self._answer, pid))

    def forget(self, pid: int) -> None:
        """Closes a worker's connection, and the memories that no other worker has."""
        connection = self._connections.pop(pid, None)
        if connection is not None:
            self._readable.unregister(connection)
            connection.close()
        for key, memory in list(self._memories.items()):
            memory.workers.discard(pid)
            if not memory.workers:
                os.close(memory.descriptor)
                del self._memories[key]

    def _answer(self, pid: int) -> None:
        connection = self._connections[pid]
        try:
            raw = connection.recv(_MAX_REQUEST_BYTES)
            if not raw:
                self.forget(pid)
                return
            request = json.loads(raw)
            memory = self.of(str(request["key"]), int(request["bytes"]), pid)
            if memory is None:
                connection.send(b"no")
            else:
                socket.send_fds(connection, [b"yes"], [memory.descriptor])
        except (OSError, ValueError, KeyError, TypeError):
            # What it says is the worker's own: it gets no memory, and others are not disturbed.
            self.forget(pid)

    def of(self, key: str, num_bytes: int, pid: int) -> _Memory | None:
        """Returns the memory with a key for a worker; None if its size is another, or the worker has too many."""
        memory = self._memories.get(key)
        if memory is None:
            held = sum(pid in each.workers for each in self._memories.values())
            if not ID_BYTES <= num_bytes <= _MOST_BYTES or held >= _MOST_KEYS:
                return None
            memory = self._memories[key] = _Memory(_made(num_bytes), num_bytes)
        if memory.num_bytes != num_bytes:
            return None
        memory.workers.add(pid)
        return memory


def _made(num_bytes: int) -> int:
    descriptor = os.memfd_create("fdt-ranks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_bytes)
    os.pwrite(descriptor, secrets.token_bytes(ID_BYTES), 0)
    # One that cut it would end the others by SIGBUS.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns the two ends of a connection: the fork server's and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def asked(connection: socket.socket, key: str, num_bytes: int) -> int | None:
    """The worker's side: returns a descriptor of the memory with a key; None if the fork server gives none.

    Args:
        connection: To the fork server.
        key: Known to the processes only that are to share the memory.
        num_bytes: The memory's size; all processes name the same.
    """
    connection.settimeout(_ANSWER_S)
    try:
        connection.send(json.dumps({"key": key, "bytes": num_bytes}).encode())
        _, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 1)
    except OSError:
        return None
    return descriptors[0] if descriptors else None
