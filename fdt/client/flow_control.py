"""Limits how many steps a client sends at once, and how far it is ahead of the workers."""

import time


class FlowControl:
    """How many steps to send at once and how far to be ahead, from the rate at which they come back.

    Attributes:
        sent: Steps so far.
        limit: How many may be sent that have not come back.
        chunk: How many are sent at once.
    """

    # Before anything is known, and ever after.
    _FIRST, _LEAST = 8, 4

    def __init__(self, run_ahead_s: float, at_once: int = 1):
        """
        Args:
            run_ahead_s: For how long the workers are to have steps, if they come back as fast as they did.
            at_once: How many are made at the same time. Each worker that makes steps of its own has one, and the next at hand,
                however long they take: what is sent by a rate alone lets workers rest, and so makes the rate lower still.
        """
        self._run_ahead_s = run_ahead_s
        self._least = max(self._LEAST, 2 * at_once)
        self._since: tuple[float, int] | None = None
        self.sent = 0
        self.limit = max(self._FIRST, self._least)
        self.chunk = 1

    def observe(self, done: int) -> None:
        """Takes how many steps have come back so far."""
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
