"""Keeps the pool's connections to its hosts: its own machine, and the hosts that joined."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from fdt.base.config import ServeConfig
from fdt.base.versions import host_versions
from fdt.pool import hosts
from fdt.pool.hosts import Host, JoinedHost, OwnHost
from fdt.pool.reconciler import Reconciler
from fdt.pool.relay import Outbox
from fdt.pool.state import events
from fdt.pool.state.events import OWN_HOST
from fdt.pool.worker_keys import WorkerKeys
from fdt.v1 import blobs_pb2, host_pb2


class HostLinks(dict[str, Host]):
    """Hosts by their names in the pool's state; the supervisor's lock guards the table.

    Attributes:
        joined: Only the hosts that joined.
        worker_keys: Keys of the workers on joined hosts.
        reconciler: Requests hosts from a scheduler; None without a scheduler. Set before the pool starts.
    """

    def __init__(
        self,
        config: ServeConfig,
        own: OwnHost,
        modes: Iterable[str],
        on_full: Callable[[str, str], None],
    ) -> None:
        """
        Args:
            config: The pool's configuration.
            own: The pool's own machine.
            modes: The modes that the pool serves.
            on_full: Called with the name of a host that does not read its messages, and the exceeded bound in words.
        """
        super().__init__({OWN_HOST: own})
        self._config, self._on_full = config, on_full
        self._welcome = host_pb2.Welcome(
            modes=modes, timing=dataclasses.asdict(config.timing), address=own.place.address
        )
        self.worker_keys = WorkerKeys()
        self.joined: dict[str, JoinedHost] = {}
        self.reconciler: Reconciler | None = None
        self._num_joined = 0

    def join(self, hello: host_pb2.Hello) -> tuple[JoinedHost, bool]:
        """Adds a host; returns it, and whether it was requested from the scheduler.

        Raises:
            UsageError: `fdt.pool.hosts.admit` refuses the host.
            VersionError: The host has other versions.
        """
        hosts.admit(hello, self._config, host_versions(), self.joined.values(), time.time())
        self._num_joined += 1
        name = f"host-{self._num_joined}"
        outbox = Outbox(self._config.limits.unread_bytes, None, lambda bound: self._on_full(name, bound))
        host = self[name] = self.joined[name] = JoinedHost(name, hello, outbox, self.worker_keys)
        return host, self.reconciler is not None and self.reconciler.joined(hello.name)

    def welcome(self, do: events.WelcomeHost) -> None:
        """Tells a host that it has joined, and sends it the pool's modes, timing and address."""
        self.joined[do.host].tell(welcome=self._welcome)

    def dismiss(self, do: events.DropHost) -> Host:
        """Deletes a host from the table, and dismisses it; returns it."""
        host, joined = self.pop(do.host), self.joined.pop(do.host, None)
        if self.reconciler is not None and joined is not None:
            self.reconciler.left(joined.called, "" if do.spare else f"host {joined.label} {do.reason}")
        host.dismiss(f"This host {do.reason}; the pool goes on without it.", do.spare)
        return host

    def works(self, do: events.HostWorks) -> None:
        """Tells the reconciler that a host can serve jobs."""
        if self.reconciler is not None:
            self.reconciler.works(self.joined[do.host].called)

    def want(self, do: events.WantHosts) -> None:
        """Sets the number of hosts that the reconciler requests from the scheduler."""
        if self.reconciler is not None:
            self.reconciler.want(do.number)

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Deletes blobs that are no longer used, on all hosts."""
        if refs:
            for host in list(self.values()):
                host.drop(refs)

    def known_to(self, state: Mapping[str, object]) -> dict[str, Host]:
        """Returns the hosts that the pool's state knows."""
        return {name: host for name, host in self.items() if name in state}
