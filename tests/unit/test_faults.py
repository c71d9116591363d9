"""Which faults a job is begun again after: lists of what befell it, no clock."""

from fdt.errors import FdtError, PoolUnreachableError, WorkerError, WorkerLostError
from fdt.faults import Faults


def outcome(*befell: tuple[FdtError, int] | tuple[FdtError, int, str]) -> tuple[int, str]:
    """Returns after how many of these the job is not begun again, and what is said then."""
    faults = Faults()
    for number, (error, step, *asked) in enumerate(befell, 1):
        if not faults.lost(error, step, asked=bool(asked)):
            return number, str(faults.explained(error))
    return 0, ""


KILLED, CUT = WorkerLostError("Rank 1 was killed."), PoolUnreachableError("It is gone.")


def test_the_third_lost_worker_at_one_step_is_the_steps_own() -> None:
    assert outcome((KILLED, 5), (KILLED, 5), (KILLED, 5)) == (
        3,
        "Rank 1 was killed. It is the third fault in a row at step 5: the step itself may be the cause.",
    )
    assert outcome((KILLED, 5), (KILLED, 5), (KILLED, 6), (KILLED, 6)) == (0, "")


def test_a_pool_that_is_lost_says_nothing_of_the_step() -> None:
    assert outcome((KILLED, 5), (CUT, 5), (CUT, 5), (KILLED, 5), (CUT, 5)) == (0, "")
    assert outcome(*[(CUT, 5)] * 20) == (10, "It is gone. The job was lost 10 times in a row at step 5.")
    assert outcome(*[(CUT, step) for step in range(20)]) == (0, "")


def test_nor_does_a_job_that_was_asked_to_begin_again() -> None:
    assert outcome((KILLED, 5), (KILLED, 5, "asked"), (KILLED, 5, "asked"), (KILLED, 5)) == (0, "")


def test_what_a_step_raises_ends_the_job() -> None:
    assert outcome((WorkerError("a fault of its own"), 3)) == (1, "a fault of its own")
    number, said = outcome((KILLED, 5), (WorkerError("no such file"), 5))
    assert (number, said) == (2, "Rank 1 was killed. The job could not be begun again: no such file")
