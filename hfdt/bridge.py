"""Connects Horovod's C++ to the job's rendezvous: HTTP on loopback, for the calls of this very process.

Horovod's ranks find each other through an HTTP store (GET, PUT and DELETE of /scope/key), which knows no password. So each
rank's own process answers it, for as long as the ranks meet, and passes the values on over the channel on which it has
attached to the pool. A connection that is not of this process is closed before anything is read from it.
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
# A call that has begun goes on at once, or is over.
_CALL_S = 10.0
_OWN_FILES = Path("/proc/self/fd")
_CONNECTIONS = Path("/proc/self/net/tcp")


class Bridge:
    """Open for the length of a `with` block."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        """Opens a port of loopback that the system chooses."""
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
        """Returns Horovod's settings."""
        host, port = self.address
        return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def is_own(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Returns whether this process holds the client's end of a TCP connection over loopback.

    Args:
        client: IPv4 address and port of the end that connected.
        server: Of the end that was connected to.
    """
    ends = [_as_listed(client), _as_listed(server)]
    rows = [line.split() for line in _CONNECTIONS.read_text().splitlines()[1:]]
    found = {f"socket:[{row[9]}]" for row in rows if row[1:3] == ends}
    return any(_target(link) in found for link in _OWN_FILES.iterdir())


def _as_listed(end: tuple[str, int]) -> str:
    """Returns an address and port as the kernel lists them: the address's four bytes as a number of this machine's."""
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
        # Not HTTPServer's: it asks the resolver for a name of the address, which may take long and is not needed.
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
            # Horovod says goodbye to a scope; the values end with the job anyway.
            self._answer(200)

        def _failed(self, error: FdtError) -> None:
            # Horovod tells a status only; the log of the job tells why.
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
