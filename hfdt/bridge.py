"""Connects Horovod's C++ to the job's rendezvous: serves HTTP on loopback to this process only.

Horovod's ranks find each other through an HTTP store (GET, PUT and DELETE of /scope/key) without authentication. So each rank's
process serves the store itself while the ranks connect, and forwards values over its own channel to the pool. It closes
another process's connection before reading anything from it.
"""

import os
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from fdt.errors import FdtError
from fdt.worker.runtime import Rendezvous

# Ranks tell each other addresses: some hundred bytes for each other rank.
_MAX_VALUE_BYTES = 1 << 20
# Horovod makes one call at a time.
_MAX_HANDLERS = 8
# How long the server waits for the rest of a call that has begun.
_CALL_S = 10.0
_OWN_FILES = Path("/proc/self/fd")
_CONNECTIONS = Path("/proc/self/net/tcp")


class Bridge:
    """The HTTP server; it runs inside a `with` block."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        """Opens a loopback port that the system chooses."""
        self._server = _Server(rendezvous)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="hfdt-bridge", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> tuple[str, int]:
        """Address and port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def environment(self) -> Mapping[str, str]:
        """Returns the environment variables that tell Horovod the address."""
        host, port = self.address
        return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Returns whether this process holds the client's end of a TCP connection over loopback.

    Args:
        client: IPv4 address and port of the connecting end.
        server: IPv4 address and port of the accepting end.
    """
    ends = [_as_listed(client), _as_listed(server)]
    rows = [line.split() for line in _CONNECTIONS.read_text().splitlines()[1:]]
    found = {f"socket:[{row[9]}]" for row in rows if row[1:3] == ends}
    return any(_target(link) in found for link in _OWN_FILES.iterdir())


def _as_listed(end: tuple[str, int]) -> str:
    """Returns an address and port in the kernel's format, with the address's four bytes as a native-endian number."""
    (number,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{number:08X}:{end[1]:04X}"


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


class _Server(ThreadingHTTPServer):
    """Answers this process only."""

    daemon_threads = True

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._handlers = threading.BoundedSemaphore(_MAX_HANDLERS)
        super().__init__(("127.0.0.1", 0), _handler(rendezvous))

    def server_bind(self) -> None:
        # HTTPServer's own method asks the resolver for the address's name, which may take long and is not needed.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return is_own(client_address, request.getsockname()) and self._handlers.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._handlers.release()


def _handler(rendezvous: Rendezvous) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CALL_S

        def do_GET(self) -> None:
            try:
                value = rendezvous.get(self.path)
            except FdtError as error:
                self._failed(error)
            else:
                self._answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            size = self.headers.get("Content-Length", "")
            if not (size.isascii() and size.isdecimal()):
                self._answer(411)
                return
            if int(size) > _MAX_VALUE_BYTES:
                self._answer(413)
                return
            try:
                rendezvous.put(self.path, self.rfile.read(int(size)))
            except FdtError as error:
                self._failed(error)
            else:
                self._answer(200)

        def do_DELETE(self) -> None:
            # Horovod deletes a scope when it is done; the values are dropped with the job anyway.
            self._answer(200)

        def _failed(self, error: FdtError) -> None:
            # Horovod reports only the status, so write the reason to the job's log.
            print(f"fdt worker: {error}", file=sys.stderr, flush=True)
            self._answer(502)

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps quiet."""

    return Handler
