"""Stale synchronous parallel: how far a worker may be ahead of the slowest (Ho et al., NIPS 2013)."""

from collections.abc import Iterable

# Of workers that share the cores of one host. They are equally fast: what is further ahead is so since another was held up,
# by the compilation of its first step for example.
_SHARED_HOST = 2


def default_max_delay(hosts: Iterable[str]) -> int | None:
    """Returns the limit where nobody has set one; None for none, as for hosts that may differ in speed for good.

    Args:
        hosts: Of the workers.
    """
    return _SHARED_HOST if len(set(hosts)) == 1 else None


class Gate:
    """Counts what each worker has done since all were level. Not for several threads at once."""

    def __init__(self, num_workers: int, max_delay: int | None):
        """All workers level.

        Args:
            num_workers: How many.
            max_delay: A worker that is further ahead of the slowest waits; 0 is synchronous, None never waits.
        """
        self._max_delay = max_delay
        self._done = [0] * num_workers

    def is_open(self, worker: int) -> bool:
        """Whether a worker may start on another batch."""
        return self._max_delay is None or self._done[worker] - min(self._done) <= self._max_delay

    def finished(self, worker: int) -> None:
        """Records a batch that a worker has done."""
        self._done[worker] += 1

    def level(self) -> None:
        """Makes all equal, when none of them has anything to do."""
        self._done = [0] * len(self._done)
