"""Measures when steps of a job end, as the client learns of it."""

import time


class StepTimes:
    """The number of steps that have ended, and how long a step takes.

    Attributes:
        done: Number of steps that have ended since the job began, each counted once.
        is_counting: Whether steps that end now count for `step_seconds`; a validation's do not.
    """

    def __init__(self) -> None:
        self.done = 0
        self.is_counting = True
        # Number of steps that do not count.
        self._uncounted = 0
        # Times of the first and the newest report since `begin`, and the number of counting steps that had ended by then.
        self._first: tuple[float, int] | None = None
        self._newest: tuple[float, int] | None = None

    def begin(self) -> None:
        """Restarts `first_step_s` and `step_seconds`."""
        self._first = self._newest = None

    def leave_out(self, steps: int) -> None:
        """Has steps that have been made not count for `step_seconds`.

        Args:
            steps: Their number.
        """
        self._uncounted += steps

    def reach(self, steps: int) -> None:
        """Records a report.

        Args:
            steps: Number of steps that have ended since the job began; fewer than `done` after a fault.
        """
        if steps > self.done and self.is_counting:
            self._newest = time.monotonic(), steps - self._uncounted
            self._first = self._first or self._newest
        self.done = max(self.done, steps)

    @property
    def first_step_s(self) -> float | None:
        """The time of the first report since `begin`, by the monotonic clock; None if there was none."""
        return None if self._first is None else self._first[0]

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds a step since the first report; None if there was no other."""
        first, newest = self._first, self._newest
        if first is None or newest is None or newest[1] == first[1]:
            return None
        return (newest[0] - first[0]) / (newest[1] - first[1])
