"""How many hosts a pool wants of its scheduler, and which it gives back. No I/O: part of the pool's state."""

from collections.abc import Iterable, Mapping

from fdt.base.config import PlacingConfig
from fdt.pool.state.entities import Host


class HostDemand:
    """What is wanted now, and since when hosts have had nothing to do.

    Attributes:
        wanted: Hosts in all, with those that have joined.
        reason: What the scheduler says of those that have not; "" for nothing.
    """

    def __init__(self, config: PlacingConfig) -> None:
        """Begins with no host wanted."""
        self._config = config
        self.wanted, self.reason = 0, ""
        self._num_placed = self._num_needed = 0
        # In the order in which they fell idle.
        self._idle_since_s: dict[str, float] = {}

    def capacity(self, fixed_slots: int) -> int:
        """Returns how many workers there can be, if so many are not the scheduler's."""
        return fixed_slots + self._config.most * self._config.slots

    def look(self, hosts: Iterable[Host], busy: Mapping[str, int], queued: int, time_s: float) -> bool:
        """Records the present state; returns whether another number of hosts is wanted than before.

        Args:
            hosts: All of the pool.
            busy: How many workers serve on each; 0 for hosts that are not in it.
            queued: Workers of all jobs that wait.
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
        """Returns hosts that nobody needs, and when each has been idle for long enough to go."""
        num_spare = max(0, self._num_placed - self._num_needed)
        return [(since + self._config.idle_s, host) for host, since in list(self._idle_since_s.items())[:num_spare]]

    def describe(self) -> str:
        """Returns what is waited for, in words; "" if all that are wanted have joined."""
        missing = self.wanted - self._num_placed
        if missing <= 0:
            return ""
        said = f": {self.reason}" if self.reason else ""
        return f"{missing} more host(s) asked of {self._config.scheduler}{said}"
