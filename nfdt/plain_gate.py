"""Holds workers that are too far ahead, in Python, on machines without a compiler; see `nfdt.staleness_bound`."""

import threading
import time


class PlainGate:
    """Counts the steps of each worker. Any thread may call; the one that waits blocks."""

    def __init__(self, num_workers: int, max_delay: int | None) -> None:
        """Makes a gate for workers that are all idle; see `StalenessBound`."""
        self._max_delay = max_delay
        self._done = [0] * num_workers
        self._is_idle = [True] * num_workers
        self._changed = threading.Condition()

    def is_open(self, worker: int) -> bool:
        """Whether a worker may begin a step."""
        with self._changed:
            return self._is_open(worker)

    def enter(self, worker: int) -> float:
        """Waits until a worker may begin a step; returns the seconds that it waited."""
        began_s = time.monotonic()
        with self._changed:
            if self._is_open(worker):
                return 0.0
            # The thread that ends the workers opens the gate.
            self._changed.wait_for(lambda: self._is_open(worker))
        return time.monotonic() - began_s

    def leave(self, worker: int) -> None:
        """Records a step that a worker has made."""
        with self._changed:
            self._done[worker] += 1
            self._changed.notify_all()

    def set_idle(self, worker: int, is_idle: bool) -> None:
        """Records whether a worker has nothing to do; its count is raised to the slowest's when it gets work again."""
        with self._changed:
            if not is_idle and self._is_idle[worker]:
                slowest = self._slowest()
                if slowest is None:
                    self._done = [0] * len(self._done)
                else:
                    self._done[worker] = max(self._done[worker], slowest)
            self._is_idle[worker] = is_idle
            self._changed.notify_all()

    def open(self) -> None:
        """Removes the limit: no worker is held from now on."""
        with self._changed:
            self._max_delay = None
            self._changed.notify_all()

    def _slowest(self) -> int | None:
        return min((n for n, idle in zip(self._done, self._is_idle, strict=True) if not idle), default=None)

    def _is_open(self, worker: int) -> bool:
        slowest = self._slowest()
        return self._max_delay is None or slowest is None or self._done[worker] - slowest <= self._max_delay
