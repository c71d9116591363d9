"""Connects a client directly to the workers of its run's own pool: small messages go past the control process.

Each worker of such a pool listens on a unix socket in its own folder, which only the user of the pool may enter. The socket
keeps the bounds of messages, and tells at once that the other process has ended.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

# The socket's name in the worker's folder.
_NAME = "direct"
# The most bytes of a message.
MAX_BYTES = 96 << 10
# The kernel cuts messages that are larger than half of a socket's buffer.
_MIN_BUFFER_BYTES = 2 * MAX_BYTES + 1024
# Bytes that the kernel is asked to keep for a reader who is busy.
_BUFFER_BYTES = 1 << 20


class Connection:
    """One end of a connection. Nothing here waits."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._end = end
        self._is_over = False

    def fileno(self) -> int:
        """Returns the descriptor to wait for; -1 once the connection is over."""
        return -1 if self._is_over else self._end.fileno()

    def send(self, message: bytes) -> bool:
        """Sends a message whole, if there is room for it now; returns whether it was sent, or has nobody to go to."""
        if self._is_over:
            return True
        try:
            self._end.send(message)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._is_over = True
        return True

    def receive(self) -> bytes | None:
        """Returns the next message; None if there is none now, or if the connection is over."""
        if self._is_over:
            return None
        try:
            message = self._end.recv(MAX_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            message = b""
        # An empty message is the end: nobody sends one.
        self._is_over = not message
        return message or None

    @property
    def is_over(self) -> bool:
        """Whether the other process has ended, or closed its end."""
        return self._is_over

    def close(self) -> None:
        """Closes this end."""
        self._is_over = True
        self._end.close()


class Listener:
    """A worker's side: waits for the client, and takes one connection."""

    def __init__(self, folder: Path) -> None:
        """Listens in a worker's folder, before the process loses the right to make sockets.

        Raises:
            OSError: The kernel refuses.
        """
        self._socket = _made()
        with _path(folder) as path:
            self._socket.bind(path)
        self._socket.listen(1)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Returns the descriptor to wait for."""
        return self._socket.fileno()

    def accept(self) -> Connection | None:
        """Returns the client's connection, and listens no more; None if it has not come."""
        try:
            end, _ = self._socket.accept()
        except BlockingIOError:
            return None
        self._socket.close()
        return Connection(end)


def connected(folder: Path) -> Connection:
    """Connects to the worker that listens in a folder.

    Raises:
        OSError: None listens, or the kernel's buffers are too small for messages to stay whole.
    """
    end = _made()
    try:
        with _path(folder) as path:
            end.connect(path)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _MIN_BUFFER_BYTES:
            raise OSError("The buffers of this system's sockets (net.core.wmem_default) are too small.")
    except BaseException:
        end.close()
        raise
    return Connection(end)


def _made() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _path(folder: Path) -> Iterator[str]:
    """Yields a short path of the socket in a folder: the kernel takes no more than 107 bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_NAME}"
    finally:
        os.close(descriptor)
