"""Refreshes the numbers of a progress bar inside an epoch, without waiting for the workers."""

import collections
from collections.abc import Callable

from fdt.capture.remote import RemoteStep
from fdt.client.answers import Answer, Drain
from fdt.client.job import Job
from fdt.v1 import job_pb2

# Fraction of the steps that the client may be ahead of the workers: after so many steps it asks for metrics again. The answer
# comes when the workers have made the steps sent before.
_PART = 0.4
_METRICS_SO_FAR = job_pb2.Drain.WHAT_METRICS_SO_FAR


class Refreshing:
    """The unanswered requests for an epoch's metrics so far."""

    def __init__(self) -> None:
        self._steps = 0
        self._drains: collections.deque[Drain] = collections.deque()

    def refresh(self, step: RemoteStep, job: Job, steps: int, show: Callable[[Answer], None]) -> None:
        """Shows the metrics that have arrived, oldest first, and requests them again after enough steps.

        Args:
            step: The step whose metrics they are.
            job: The job that makes it.
            steps: Number of steps just sent.
            show: Called with each answer once its metrics are in the script's own objects.
        """
        for drain in self.arrived():
            answer = drain.result()
            step.state.accept(answer.state, answer.contents)
            show(answer)
        self.sent(steps, job.ahead, lambda: job.request(step.program, _METRICS_SO_FAR))

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
