"""How a synchronous job becomes processes: one a rank, and a rendezvous on loopback through which they meet.

Horovod's own rendezvous server listens on every interface; this one speaks the same protocol (GET, PUT, DELETE of
/scope/key) on loopback only.
"""

import os
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fdt.errors import UsageError

_LOOPBACK = "127.0.0.1"
# Horovod looks for work every so many milliseconds. Its default of 1 costs a small exchange more than it takes.
_CYCLE_TIME_MS = "0.1"


class HorovodLauncher:
    """See `fdt.runtime.Launcher`."""

    engine = "hfdt.runtime:HorovodEngine"

    def check(self, options: Mapping[str, str]) -> None:
        """Knows no option."""
        if options:
            name, value = next(iter(options.items()))
            raise UsageError(f"--{name} goes with --mode async. Received: --mode sync --{name} {value}")

    def num_processes(self, num_workers: int) -> int:
        """A process a rank."""
        return num_workers

    def rendezvous(self, num_workers: int) -> "HorovodRendezvous":
        """Opens a rendezvous on a port that the system chooses."""
        return HorovodRendezvous(num_workers)


class HorovodRendezvous:
    """The key-value store through which the ranks of one job exchange their addresses."""

    def __init__(self, num_workers: int):
        self._num_workers = num_workers
        self._server = ThreadingHTTPServer((_LOOPBACK, 0), _handler({}, threading.Lock()))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="fdt-rendezvous", daemon=True
        )
        self._thread.start()

    def environment(self, rank: int) -> Mapping[str, str]:
        """Returns Horovod's settings for a rank; the operator's own HOROVOD_CYCLE_TIME and the like are kept."""
        size = str(self._num_workers)
        settings = {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": size,
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": size,
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_HOSTNAME": _LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._server.server_port),
            "HOROVOD_GLOO_IFACE": "lo",
        }
        if "HOROVOD_CYCLE_TIME" not in os.environ:
            settings["HOROVOD_CYCLE_TIME"] = _CYCLE_TIME_MS
        return settings

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(values: dict[str, bytes], lock: threading.Lock) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            with lock:
                value = values.get(self.path)
            self._answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            value = self.rfile.read(int(self.headers.get("Content-Length", 0)))
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
