"""One of two processes whose networks a tunnel joins: `python -m tests.helpers.tunnel_end RANK DIRECTORY BYTES OUTSIDE`.

They meet in the directory. Rank 0 sends so many bytes, and then their end, to rank 1, which answers with their digest; each
says what it sees of the machine's network, and whether it reaches a port of that, OUTSIDE.
"""

import contextlib
import hashlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from fdt.worker import network_namespace
from fdt.worker.gateway import Gateway
from fdt.worker.runtime import inner_address

_LIMIT_S = 60.0


class Directory:
    """See `fdt.worker.runtime.MeetingPlace`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _file(self, key: str) -> Path:
        return self._path / key.replace("/", "-")

    def put(self, key: str, value: bytes) -> None:
        new = self._path / f"new-{os.getpid()}"
        new.write_bytes(value)
        new.rename(self._file(key))

    def get(self, key: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self._file(key).read_bytes()
        return None

    def wait(self, key: str, limit_s: float) -> bytes:
        until_s = time.monotonic() + limit_s
        while (value := self.get(key)) is None:
            assert time.monotonic() < until_s, key
            time.sleep(0.01)
        return value

    def memory(self, key: str, num_bytes: int) -> int | None:
        return None


def answer(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        buffer, whole = memoryview(bytearray(1 << 18)), hashlib.sha256()
        while size := connection.recv_into(buffer):
            whole.update(buffer[:size])
        connection.sendall(whole.digest())


def ask(size: int) -> None:
    block, whole = os.urandom(1 << 20), hashlib.sha256()
    with socket.create_connection(inner_address(1), _LIMIT_S) as connection:
        began_s = time.perf_counter()
        for start in range(0, size, len(block)):
            part = block[: size - start]
            connection.sendall(part)
            whole.update(part)
        connection.shutdown(socket.SHUT_WR)
        digest = connection.recv(100)
        lasted_s = time.perf_counter() - began_s
    print("arrived", digest == whole.digest(), f"{size / lasted_s / 2**20:.0f} MiB/s", flush=True)


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[3])
    rendezvous = Directory(Path(sys.argv[2]))
    gateway = Gateway.start()
    print("tunnel", gateway._process.pid, flush=True)
    network_namespace.isolate()
    gateway.serve()
    with contextlib.ExitStack() as opened:
        # As TensorFlow's servers: on all interfaces that it sees.
        server = opened.enter_context(socket.create_server(("0.0.0.0", inner_address(rank)[1])))
        gateway.meet(rank, ["127.0.0.1", "127.0.0.1"], rendezvous)
        print("interfaces", *(name for _, name in socket.if_nameindex()), flush=True)
        try:
            socket.create_connection(("127.0.0.1", int(sys.argv[4])), 5.0).close()
            print("outside reached", flush=True)
        except OSError as error:
            print("outside", type(error).__name__, flush=True)
        answer(server) if rank else ask(size)
        # Until the test ends it.
        signal.pause()


if __name__ == "__main__":
    main()
