"""Records the faults that a job has survived, and decides when it is not begun again."""

import dataclasses
import itertools
import time

from fdt.errors import FdtError, PoolRestartingError, PoolUnreachableError, WorkerLostError

# After so many worker faults in a row at the same step, with the workers equally far each time, the step counts as the cause.
_SAME_STEP = 3
# After so many faults in a row of any kind, the pool's and the connection's included, the job is given up.
_WITHOUT_PROGRESS = 10


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that a job has survived.

    Attributes:
        cause: What happened.
        step: The number of steps that the job had made.
        repeated: The number of its steps that were made again.
        seconds: Time until it had reached that step once more.
        workers: The number of workers with which it goes on.
    """

    cause: str
    step: int
    repeated: int
    seconds: float
    workers: int

    def line(self) -> str:
        """Returns a line about it."""
        return (
            f"{self.cause.partition(' The end of its log:')[0]} Training goes on with {self.workers} worker(s), after "
            f"{self.seconds:.1f} s, at step {self.step:,}; {self.repeated:,} step(s) were made again"
        )


class Faults:
    """The faults of one job.

    Attributes:
        survived: The survived faults, in order.
        in_a_row: How often the job was lost since it last reached its former step again.
    """

    def __init__(self) -> None:
        self.survived: list[Fault] = []
        self.in_a_row = 0
        # For each loss: the job's steps, and the steps that its workers of that time had reached, if one of them was the cause.
        self._lost: list[tuple[int, int | None]] = []
        # The step that the present workers have reached; None until they have a program. And the most steps reported at once:
        # workers that fail at the same step may have reported steps as far apart as that.
        self._reached: int | None = None
        self._steps_per_call = 0
        self._now: tuple[FdtError, float] | None = None

    @property
    def count(self) -> int:
        """The number of times that the job was lost so far."""
        return len(self._lost)

    @property
    def num_over(self) -> int:
        """The number of faults that are over; a failure during another fault may be its consequence."""
        return len(self._lost) - (self._now is not None)

    @property
    def is_over(self) -> bool:
        """Whether the job has reached the step that it had before the last fault."""
        return self._now is None

    def loaded(self, steps: int) -> None:
        """Records that workers have a program; they begin after `steps` steps."""
        if self._reached is None:
            self._reached = steps

    def heard(self, steps: int) -> None:
        """Records the step that the present workers have reached; repeated steps keep their numbers."""
        self.loaded(steps)
        self._steps_per_call = max(self._steps_per_call, steps - (self._reached or 0))
        self._reached = max(steps, self._reached or 0)

    def lost(self, error: FdtError, step: int, *, asked: bool = False) -> bool:
        """Records the loss of a job; returns whether it can be begun again.

        Args:
            error: The cause.
            step: The number of steps that it had made.
            asked: Whether the client ended it, to use more or fewer workers or another pool, so that no step is the cause.
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
        # Workers that are killed from outside while steps are repeated fail at different steps.
        if len(places) == _SAME_STEP and max(places) - min(places) <= self._steps_per_call:
            return f"It is the third fault in a row at step {step:,}: the step itself may be the cause."
        if len(here) >= _WITHOUT_PROGRESS:
            return f"The job was lost {len(here)} times in a row at step {step:,}."
        return ""

    def explained(self, error: FdtError) -> FdtError:
        """Returns the error to raise for a job that does not go on."""
        if self._now is None:
            return error
        if hopeless := self._hopeless():
            return type(error)(f"{error} {hopeless}")
        if error is not self._now[0]:
            return type(self._now[0])(f"{self._now[0]} The job could not be begun again: {error}")
        return error

    def over(self, step: int, repeated: int, num_workers: int) -> Fault:
        """Records that the job has reached its former step; returns the fault that it has survived."""
        assert self._now is not None
        (error, since_s), self._now, self.in_a_row = self._now, None, 0
        cause = str(error)
        if isinstance(error, PoolUnreachableError) and not isinstance(error, PoolRestartingError):
            cause = f"The connection to the pool was lost: {cause}."
        self.survived.append(Fault(cause, step, repeated, time.monotonic() - since_s, num_workers))
        return self.survived[-1]
