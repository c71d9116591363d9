"""Refreshes the numbers of a progress bar inside an epoch, without waiting for the workers."""

import collections
from collections.abc import Callable

from fdt.client.answers import Drain

# A part of the steps that the client may be ahead of the workers: after so many it asks for numbers again. They come when the
# workers have made the steps that were sent before.
_PART = 0.4


class Refreshing:
    """Requests for metrics as they are so far, under way."""

    def __init__(self) -> None:
        self._steps = 0
        self._drains: collections.deque[Drain] = collections.deque()

    def arrived(self) -> list[Drain]:
        """Returns what has come, oldest first."""
        found = []
        while self._drains and self._drains[0].ready():
            found.append(self._drains.popleft())
        return found

    def sent(self, steps: int, ahead: int, request: Callable[[], Drain]) -> None:
        """Records steps that were sent, and asks if there were enough of them.

        Args:
            steps: How many.
            ahead: How many the client may be ahead, which the workers make in `Timing.run_ahead_s`.
            request: Asks.
        """
        self._steps += steps
        if self._steps >= max(1, int(_PART * ahead)):
            self._steps = 0
            self._drains.append(request())

    def settle(self) -> None:
        """Waits for all that is under way."""
        self._steps = 0
        while self._drains:
            self._drains.popleft().result()
