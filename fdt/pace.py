"""How many steps a client sends at once, and how far it is ahead of the workers."""

import time


class Pace:
    """How many steps to send at once and how far to be ahead, from the rate at which they come back."""

    # Before anything is known.
    _FIRST = 8

    def __init__(self, run_ahead_s: float):
        self._run_ahead_s = run_ahead_s
        self._since: tuple[float, int] | None = None
        self.sent = 0
        self.limit = self._FIRST
        self.chunk = 1

    def observe(self, done: int) -> None:
        now = time.monotonic()
        if self._since is None or done < self._since[1]:
            self._since = (now, done)
            return
        elapsed, steps = now - self._since[0], done - self._since[1]
        if steps >= 1 and elapsed >= self._run_ahead_s / 5:
            ahead = int(steps / elapsed * self._run_ahead_s)
            self.limit = max(4, min(ahead, 2 * self.limit))
            self.chunk = max(1, min(self.limit // 4, 256))
            self._since = (now, done)
