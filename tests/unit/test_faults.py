"""Which faults a job is begun again after: lists of what befell it, no clock."""

from fdt.client.faults import Faults
from fdt.errors import FdtError, PoolUnreachableError, WorkerError, WorkerLostError


def outcome(*befell: tuple[FdtError, int] | tuple[FdtError, int, str]) -> tuple[int, str]:
    """Returns after how many of these the job is not begun again, and what is said then.

    Each is an error, and how far the job had come, as had its workers.
    """
    faults = Faults()
    for number, (error, step, *asked) in enumerate(befell, 1):
        faults.loaded(step)
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


def outcome_of_places(job: int, stride: int, *places: int | None) -> int:
    """Returns after how many kills it is not begun again: workers come to these places of a job that had come further."""
    faults = Faults()
    faults.loaded(0)
    faults.heard(stride)
    assert faults.lost(CUT, 0)
    for number, place in enumerate(places, 1):
        if place is not None:
            faults.loaded(place)
        if not faults.lost(KILLED, job):
            return number
    return 0


def test_workers_that_are_killed_while_steps_are_made_again_do_not_blame_the_step() -> None:
    """What kills them from outside does so anywhere; a step does it where it stands."""
    assert outcome_of_places(600, 10, 600, 417, 455) == 0
    assert outcome_of_places(600, 10, 600, 417, 455, 600, 598, 591) == 6, "as far as workers tell of it at once"
    assert outcome_of_places(600, 10, 600, 589, 600) == 0
    # Who has no program yet has come to no step.
    assert outcome_of_places(600, 10, None, None, None, None) == 0
    assert outcome_of_places(600, 10, *[None] * 20) == 10


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
