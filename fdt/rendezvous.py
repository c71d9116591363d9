"""A key-value store over HTTP through which the processes of one job find each other.

It speaks the protocol of Horovod's rendezvous (GET, PUT and DELETE of /scope/key). The protocol has no authentication, so the
store answers the hosts of the job and nobody else, on the address that it is given: loopback, or one on the network that the
operator trusts.
"""

import http.client
import socketserver
import threading
import time
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fdt.errors import WorkerError

# Processes tell each other addresses: some hundred bytes each.
_MAX_VALUE_BYTES = 1 << 20
# How often a value that is not there yet is asked for.
_POLL_S = 0.02
_CALL_S = 10.0


class KeyValueServer:
    """The store; its values live as long as it does."""

    def __init__(self, address: str, peers: Collection[str]) -> None:
        """Opens it on a port that the system chooses.

        Args:
            address: IPv4 address to listen on.
            peers: IPv4 addresses that are answered.
        """
        self._server = _Server(address, peers)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="fdt-rendezvous", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Address and port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class KeyValueClient:
    """A process's end of the store."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Connects for each call anew.

        Args:
            address: Of the store, with its port.
        """
        self._address = address

    def put(self, key: str, value: bytes) -> None:
        """Sets a value.

        Raises:
            WorkerError: The store does not answer.
        """
        status, _ = self._call("PUT", key, value)
        if status != 200:
            raise WorkerError(f"The job's rendezvous did not take a value: HTTP {status}. Received: key={key}")

    def wait(self, key: str, limit_s: float) -> bytes:
        """Returns a value once somebody has set it.

        Raises:
            WorkerError: Nobody did within the limit, or the store does not answer.
        """
        until_s = time.monotonic() + limit_s
        while True:
            status, value = self._call("GET", key)
            if status == 200:
                return value
            if time.monotonic() > until_s:
                raise WorkerError(f"Another process of the job did not say {key} within {limit_s:.0f} s.")
            time.sleep(_POLL_S)

    def _call(self, method: str, key: str, value: bytes | None = None) -> tuple[int, bytes]:
        # Not urllib: an operator's proxy is not meant for this.
        connection = http.client.HTTPConnection(*self._address, timeout=_CALL_S)
        try:
            connection.request(method, f"/fdt/{key}", body=value)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise WorkerError(f"The job's rendezvous does not answer: {error}") from error
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    """Answers some addresses only."""

    daemon_threads = True

    def __init__(self, address: str, peers: Collection[str]) -> None:
        self._peers = frozenset(peers)
        super().__init__((address, 0), _handler({}, threading.Lock()))

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks the resolver for a name of the address, which may take long and is not needed.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return client_address[0] in self._peers


def _handler(values: dict[str, bytes], lock: threading.Lock) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            with lock:
                value = values.get(self.path)
            self._answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            if size > _MAX_VALUE_BYTES:
                # Read all the same: to who is still sending, an early answer looks like a broken connection.
                while size > 0 and (discarded := len(self.rfile.read(min(size, _MAX_VALUE_BYTES)))):
                    size -= discarded
                self._answer(413)
                return
            value = self.rfile.read(size)
            with lock:
                values[self.path] = value
            self._answer(200)

        def do_DELETE(self) -> None:
            # Horovod says goodbye to a scope; the store ends with the job anyway.
            self._answer(200)

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps quiet."""

    return Handler
