"""Serves `fdt.v1.Hosts`: a stream for each machine that joins the pool."""

import functools
import threading
import time
from collections.abc import Iterator

import grpc

from fdt.base import log
from fdt.errors import ProtocolError
from fdt.pool.access import Access
from fdt.pool.hosts import JoinedHost
from fdt.pool.services.streams import until_broken
from fdt.pool.state import events
from fdt.pool.supervisor import Supervisor
from fdt.transport import wire
from fdt.v1 import host_pb2


class Hosts:
    """The service `fdt.v1.Hosts`."""

    def __init__(self, supervisor: Supervisor, access: Access) -> None:
        self._supervisor, self._access = supervisor, access

    def Attach(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = wire.decode(host_pb2.HostEvent, next(requests, b""))
        if not first.HasField("hello"):
            raise ProtocolError("A host's first event must be `hello`.")
        host = self._supervisor.join(first.hello)
        self._access.did(context, "host attached", host=host.label, workers=host.num_workers)
        lost = functools.partial(self._gone, host, "was lost: its connection broke")
        if not context.add_callback(lost):
            lost()
        threading.Thread(target=self._take, args=(host, requests), name=f"fdt-{host.name}-events", daemon=True).start()
        yield from host.outbox

    def _gone(self, host: JoinedHost, reason: str) -> None:
        self._supervisor.post(events.HostGone(time.time(), host.name, reason))

    def _take(self, host: JoinedHost, requests: Iterator[bytes]) -> None:
        try:
            for raw in until_broken(requests):
                host.heard_s = time.monotonic()
                event = wire.decode(host_pb2.HostEvent, raw)
                if event.HasField("exit"):
                    self._supervisor.exited_on(host, event.exit)
                elif event.HasField("goodbye"):
                    self._gone(host, "left the pool")
        except ProtocolError as error:
            self._gone(host, f"was dismissed: {error}")
        except Exception as error:  # any error: the host is dropped, and the error logged
            log.crashed()
            self._gone(host, f"was dismissed: the pool could not handle its message ({type(error).__name__}: {error})")
