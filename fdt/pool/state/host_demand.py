"""Decides how many hosts a pool wants from its scheduler, and which it gives back. No I/O: part of the pool's state."""

from collections.abc import Iterable, Mapping

from fdt.base.config import PlacingConfig
from fdt.pool.state.entities import Host


class HostDemand:
    """The number of wanted hosts, and the times at which hosts became idle.

    Attributes:
        wanted: The number of wanted hosts, joined ones included.
        reason: The scheduler's reason why some of them have not joined; "" for none.
    """

    def __init__(self, config: PlacingConfig) -> None:
        """Begins with no host wanted."""
        self._config = config
        self.wanted, self.reason = 0, ""
        self._num_placed = self._num_needed = 0
        # Idle hosts, in the order in which they became idle.
        self._idle_since_s: dict[str, float] = {}

    def capacity(self, fixed_slots: int) -> int:
        """Returns the most workers that the pool can have.

        Args:
            fixed_slots: The workers on hosts that no scheduler provided; those on the most allowed hosts are added.
        """
        return fixed_slots + self._config.most * self._config.slots

    def look(self, hosts: Iterable[Host], busy: Mapping[str, int], queued: int, time_s: float) -> bool:
        """Records the present state; returns whether the number of wanted hosts has changed.

        Args:
            hosts: All hosts of the pool.
            busy: How many workers serve jobs, by host; 0 for hosts that are not in it.
            queued: The number of workers of all queued jobs.
            time_s: Now, in seconds since the epoch.
        """
        config, hosts = self._config, list(hosts)
        placed = {host.name: busy.get(host.name, 0) for host in hosts if host.placed}
        lacking = max(0, sum(busy.values()) + queued - sum(host.slots for host in hosts if not host.placed))
        self._num_needed = min(config.most, max(config.least, -(-lacking // config.slots)))
        self._num_placed = len(placed)
        idle = self._idle_since_s
        self._idle_since_s = {host: since for host, since in idle.items() if placed.get(host) == 0}
        for name, num_busy in placed.items():
            if not num_busy:
                self._idle_since_s.setdefault(name, time_s)
        before, self.wanted = self.wanted, max(self._num_needed, self._num_placed)
        return self.wanted != before

    def spare(self) -> list[tuple[float, str]]:
        """Returns the hosts that no job needs: for each, the time at which to give it back, and its name."""
        num_spare = max(0, self._num_placed - self._num_needed)
        return [(since + self._config.idle_s, host) for host, since in list(self._idle_since_s.items())[:num_spare]]

    def describe(self) -> str:
        """Returns which hosts have not joined yet, in words; "" if all wanted hosts have."""
        missing = self.wanted - self._num_placed
        if missing <= 0:
            return ""
        said = f": {self.reason}" if self.reason else ""
        return f"{missing} more host(s) asked of {self._config.scheduler}{said}"
