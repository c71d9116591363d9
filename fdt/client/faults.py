"""Records the faults that a job has survived, and tells which of them it cannot survive."""

import dataclasses
import itertools
import time

from fdt.errors import FdtError, PoolRestartingError, PoolUnreachableError, WorkerLostError

# After so many faults of workers in a row at the same step, each with the workers as far, it is the step's own fault.
_SAME_STEP = 3
# After so many of any kind, the pool's and the connection's among them, there is no hope.
_WITHOUT_PROGRESS = 10


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that a job has survived.

    Attributes:
        cause: What happened.
        step: How far the job had come.
        repeated: How many of its steps were made again.
        seconds: Until it had come so far once more.
        workers: With how many it goes on.
    """

    cause: str
    step: int
    repeated: int
    seconds: float
    workers: int

    def line(self) -> str:
        """Returns what to say of it."""
        return (
            f"{self.cause.partition(' The end of its log:')[0]} Training goes on with {self.workers} worker(s), after "
            f"{self.seconds:.1f} s, at step {self.step:,}; {self.repeated:,} step(s) were made again"
        )


class Faults:
    """The faults of one job.

    Attributes:
        survived: In order.
        in_a_row: How often the job was lost since it was last where it had been before.
    """

    def __init__(self) -> None:
        self.survived: list[Fault] = []
        self.in_a_row = 0
        # How far the job had come when it was lost, and how far its workers of then, if one of them was the cause.
        self._lost: list[tuple[int, int | None]] = []
        # How far the workers of now have come; None until they have a program. And the most steps that were told of at once:
        # as far as that, workers that come to the same step may seem apart.
        self._reached: int | None = None
        self._steps_per_call = 0
        self._now: tuple[FdtError, float] | None = None

    @property
    def count(self) -> int:
        """How often the job was lost so far."""
        return len(self._lost)

    @property
    def num_over(self) -> int:
        """How many of them are over; what fails while one is not may have failed for it."""
        return len(self._lost) - (self._now is not None)

    @property
    def is_over(self) -> bool:
        """Whether the job is where it was before the last of them."""
        return self._now is None

    def loaded(self, steps: int) -> None:
        """Records that workers have a program; they begin after so many steps."""
        if self._reached is None:
            self._reached = steps

    def heard(self, steps: int) -> None:
        """Records how far the workers of now have come, steps that are made again counted as before."""
        self.loaded(steps)
        self._steps_per_call = max(self._steps_per_call, steps - (self._reached or 0))
        self._reached = max(steps, self._reached or 0)

    def lost(self, error: FdtError, step: int, *, asked: bool = False) -> bool:
        """Records how a job ended; returns whether it can be begun again.

        Args:
            error: Why.
            step: How far it had come.
            asked: Whether it was ended for the sake of more or fewer workers, or of another pool, and so by no step.
        """
        if not isinstance(error, (WorkerLostError, PoolUnreachableError)):
            return False
        by_worker = isinstance(error, WorkerLostError) and not asked
        self._lost.append((step, self._reached if by_worker else None))
        self._reached = None
        self.in_a_row += 1
        self._now = self._now or (error, time.monotonic())
        return not self._hopeless()

    def _hopeless(self) -> str:
        """Returns why the job is not begun again; "" if it is."""
        step = self._lost[-1][0]
        here = list(itertools.takewhile(lambda lost: lost[0] == step, reversed(self._lost)))
        places = [reached for _, reached in here if reached is not None][:_SAME_STEP]
        # Workers that are killed from outside while steps are made again die at any of these.
        if len(places) == _SAME_STEP and max(places) - min(places) <= self._steps_per_call:
            return f"It is the third fault in a row at step {step:,}: the step itself may be the cause."
        if len(here) >= _WITHOUT_PROGRESS:
            return f"The job was lost {len(here)} times in a row at step {step:,}."
        return ""

    def explained(self, error: FdtError) -> FdtError:
        """Returns what to say of a job that does not go on."""
        if self._now is None:
            return error
        if hopeless := self._hopeless():
            return type(error)(f"{error} {hopeless}")
        if error is not self._now[0]:
            return type(self._now[0])(f"{self._now[0]} The job could not be begun again: {error}")
        return error

    def over(self, step: int, repeated: int, num_workers: int) -> Fault:
        """Records that the job has come as far as before; returns the fault that it has survived."""
        assert self._now is not None
        (error, since_s), self._now, self.in_a_row = self._now, None, 0
        cause = str(error)
        if isinstance(error, PoolUnreachableError) and not isinstance(error, PoolRestartingError):
            cause = f"The connection to the pool was lost: {cause}."
        self.survived.append(Fault(cause, step, repeated, time.monotonic() - since_s, num_workers))
        return self.survived[-1]
