"""A way to a port of loopback that can be cut."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Way:
    """Passes bytes on, both ways, between whoever connects here and a port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._passes = threading.Event()
        self._passes.set()
        threading.Thread(target=self._accept, name="test-way", daemon=True).start()

    def cut(self) -> int:
        """Resets all connections; returns how many there were."""
        cut, self._open = self._open, []
        for end in cut:
            # No goodbye: what is under way is lost.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        return len(cut) // 2

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Passes nothing on for the length of a `with` block, and says so to nobody: a network that is cut."""
        self._passes.clear()
        try:
            yield
        finally:
            self._passes.set()

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._server.accept()
                self._passes.wait()
                there = socket.create_connection(("127.0.0.1", self._port))
                self._open += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=(source, target), name="test-way", daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                self._passes.wait()
                target.sendall(chunk)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
