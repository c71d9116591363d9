"""How a synchronous job becomes processes: one a rank, and a rendezvous through which they meet.

Horovod's own rendezvous server listens on every interface; this one speaks the same protocol (GET, PUT, DELETE of
/scope/key) on loopback while all ranks are on the pool's own machine. For ranks on several hosts it listens on the pool's
address on the trusted network, and answers the hosts of the job and nobody else. The protocol has no authentication, and
neither has what the ranks then say to each other: hence the operator's word for that network.
"""

import os
import socketserver
import threading
from collections.abc import Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fdt.errors import UsageError
from fdt.runtime import Placement

# The variable that tells a rank on which of its host's addresses to meet the others.
ADDRESS = "FDT_GLOO_ADDRESS"

_LOOPBACK = "127.0.0.1"
_LOOPBACK_INTERFACE = "lo"
# Horovod looks for work every so many milliseconds. Its default of 1 costs a small exchange more than it takes.
_CYCLE_TIME_MS = "0.1"
# Ranks tell each other addresses: some hundred bytes each.
_MAX_VALUE_BYTES = 1 << 20


class HorovodLauncher:
    """See `fdt.runtime.Launcher`."""

    engine = "hfdt.runtime:HorovodEngine"
    spans_hosts = True

    def check(self, options: Mapping[str, str]) -> None:
        """Knows no option."""
        if options:
            name, value = next(iter(options.items()))
            raise UsageError(f"--{name} goes with --mode async. Received: --mode sync --{name} {value}")

    def num_processes(self, num_workers: int) -> int:
        """A process a rank."""
        return num_workers

    def rendezvous(self, placement: Placement) -> "HorovodRendezvous":
        """Opens a rendezvous on a port that the system chooses."""
        return HorovodRendezvous(placement)


class HorovodRendezvous:
    """The key-value store through which the ranks of one job exchange their addresses."""

    def __init__(self, placement: Placement):
        self._placement = placement
        self._address = _LOOPBACK if placement.is_own else placement.pool.address
        peers = {self._address} | {place.address for place in placement.workers}
        self._server = _Server(self._address, peers)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="fdt-rendezvous", daemon=True
        )
        self._thread.start()

    def environment(self, rank: int) -> Mapping[str, str]:
        """Returns Horovod's settings for a rank; the operator's own HOROVOD_CYCLE_TIME and the like are kept."""
        place = self._placement.workers[rank]
        one_host = len(self._placement.hosts) == 1
        interface, address = (_LOOPBACK_INTERFACE, _LOOPBACK) if one_host else (place.interface, place.address)
        settings = {
            **_numbers(self._placement, rank),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # To Horovod a name under which the ranks of one host find each other, and no address.
            "HOROVOD_HOSTNAME": place.host or "pool",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self._address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._server.server_port),
            # Horovod heeds the first for some of its connections only; see `hfdt.address`.
            "HOROVOD_GLOO_IFACE": interface,
            ADDRESS: address,
        }
        if not one_host:
            # NCCL would choose among all interfaces of a host; "=": this one, not all whose names begin like it.
            settings["NCCL_SOCKET_IFNAME"] = f"={interface}"
        if "HOROVOD_CYCLE_TIME" not in os.environ:
            settings["HOROVOD_CYCLE_TIME"] = _CYCLE_TIME_MS
        return settings

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _numbers(placement: Placement, rank: int) -> dict[str, str]:
    """Returns a rank's numbers: among all, among those of its host, and among those with its number on other hosts."""
    by_host: dict[str, list[int]] = {}
    for other, place in enumerate(placement.workers):
        by_host.setdefault(place.host, []).append(other)
    local = by_host[placement.workers[rank].host]
    local_rank = local.index(rank)
    cross = [ranks[local_rank] for ranks in by_host.values() if len(ranks) > local_rank]
    numbers = {
        "RANK": rank,
        "SIZE": len(placement.workers),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": len(local),
        "CROSS_RANK": cross.index(rank),
        "CROSS_SIZE": len(cross),
    }
    return {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}


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
