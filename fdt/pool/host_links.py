"""A pool's ends of its hosts: its own machine, and those that joined."""

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
    """By the names that the pool's state has for them; their supervisor's lock guards it.

    Attributes:
        joined: Those that joined alone.
        worker_keys: Of the workers on them.
        reconciler: Brings hosts, where a scheduler does; set before the start.
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
            config: The pool's.
            own: The pool's own machine.
            modes: That are served.
            on_full: Called with the name of a host that does not take what it is sent, and the bound in words.
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
        """Adds a host; returns it, and whether the scheduler has brought it.

        Raises:
            UsageError: Not this one; see `fdt.pool.hosts.admit`.
            VersionError: It has other versions.
        """
        hosts.admit(hello, self._config, host_versions(), self.joined.values(), time.time())
        self._num_joined += 1
        name = f"host-{self._num_joined}"
        outbox = Outbox(self._config.limits.unread_bytes, None, lambda bound: self._on_full(name, bound))
        host = self[name] = self.joined[name] = JoinedHost(name, hello, outbox, self.worker_keys)
        return host, self.reconciler is not None and self.reconciler.joined(hello.name)

    def welcome(self, do: events.WelcomeHost) -> None:
        """Tells a host that it is in, and what its workers need."""
        self.joined[do.host].tell(welcome=self._welcome)

    def dismiss(self, do: events.DropHost) -> Host:
        """Deletes a host, and lets it go."""
        host, joined = self.pop(do.host), self.joined.pop(do.host, None)
        if self.reconciler is not None and joined is not None:
            self.reconciler.left(joined.called, "" if do.spare else f"host {joined.label} {do.reason}")
        host.dismiss(f"This host {do.reason}; the pool goes on without it.", do.spare)
        return host

    def works(self, do: events.HostWorks) -> None:
        """Tells who brought a host that its workers start."""
        if self.reconciler is not None:
            self.reconciler.works(self.joined[do.host].called)

    def want(self, do: events.WantHosts) -> None:
        """Has the scheduler bring hosts."""
        if self.reconciler is not None:
            self.reconciler.want(do.number)

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Deletes blobs that nobody uses any more, on all hosts."""
        if refs:
            for host in list(self.values()):
                host.drop(refs)

    def known_to(self, state: Mapping[str, object]) -> dict[str, Host]:
        """Returns those that the pool's state has."""
        return {name: host for name, host in self.items() if name in state}
