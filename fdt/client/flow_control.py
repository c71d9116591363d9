"""Limits how many steps a client sends at once, and how far it is ahead of the workers."""

import time


class FlowControl:
    """Sets how many steps to send at once and how far to be ahead, from the rate at which steps finish.

    Attributes:
        sent: Number of steps sent so far.
        limit: Number of sent steps that may be unfinished.
        chunk: Number of steps to send at once.
    """

    # The limit before any rate is known, and its lower bound.
    _FIRST, _LEAST = 8, 4

    def __init__(self, run_ahead_s: float, at_once: int = 1):
        """
        Args:
            run_ahead_s: Time for which the workers shall have steps in advance, at the rate measured so far.
            at_once: Number of steps made at the same time. Each worker that makes its own steps shall have one and the next,
                however long they take: limited by the rate alone, workers would idle, which lowers the rate further.
        """
        self._run_ahead_s = run_ahead_s
        self._least = max(self._LEAST, 2 * at_once)
        self._since: tuple[float, int] | None = None
        self.sent = 0
        self.limit = max(self._FIRST, self._least)
        self.chunk = 1

    def observe(self, done: int) -> None:
        """Adjusts the limits to the number of steps finished so far."""
        now = time.monotonic()
        if self._since is None or done < self._since[1]:
            self._since = (now, done)
            return
        elapsed, steps = now - self._since[0], done - self._since[1]
        if steps >= 1 and elapsed >= self._run_ahead_s / 5:
            ahead = int(steps / elapsed * self._run_ahead_s)
            self.limit = max(self._least, min(ahead, 2 * self.limit))
            self.chunk = max(1, min(self.limit // 4, 256))
            self._since = (now, done)
