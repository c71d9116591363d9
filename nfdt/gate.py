"""Stale synchronous parallel: how far a worker may be ahead of the slowest (Ho et al., NIPS 2013)."""


class Gate:
    """Counts what each worker has done since all were level. Not for several threads at once."""

    def __init__(self, num_workers: int, max_delay: int | None):
        """Starts level.

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
        """Takes note of a batch that a worker has done."""
        self._done[worker] += 1

    def level(self) -> None:
        """Makes all equal, when none of them has anything to do."""
        self._done = [0] * len(self._done)
