"""Refreshes the numbers of a progress bar inside an epoch, without waiting for the workers."""

import collections
from collections.abc import Callable

from fdt.client.answers import Drain

# Fraction of the steps that the client may be ahead of the workers: after so many steps it asks for metrics again. The answer
# comes when the workers have made the steps sent before.
_PART = 0.4


class Refreshing:
    """The unanswered requests for an epoch's metrics so far."""

    def __init__(self) -> None:
        self._steps = 0
        self._drains: collections.deque[Drain] = collections.deque()

    def arrived(self) -> list[Drain]:
        """Removes and returns the answered requests, oldest first."""
        found = []
        while self._drains and self._drains[0].ready():
            found.append(self._drains.popleft())
        return found

    def sent(self, steps: int, ahead: int, request: Callable[[], Drain]) -> None:
        """Counts steps sent, and requests metrics after enough of them.

        Args:
            steps: Number of steps just sent.
            ahead: Steps that the client may be ahead: as many as the workers make in `Timing.run_ahead_s`.
            request: Sends a request for metrics.
        """
        self._steps += steps
        if self._steps >= max(1, int(_PART * ahead)):
            self._steps = 0
            self._drains.append(request())

    def settle(self) -> None:
        """Waits for the answers to all requests."""
        self._steps = 0
        while self._drains:
            self._drains.popleft().result()
