"""The life of jobs and workers: every race is a list of events."""

from collections.abc import Mapping
from typing import TypeVar

import pytest

from fdt.base.config import Timing
from fdt.base.limits import DEFAULT
from fdt.pool.state.entities import Job, JobState, WorkerState, describe_status
from fdt.pool.state.events import (
    Assign,
    Cancelled,
    ClientGone,
    Closing,
    EndJob,
    EndWorker,
    Event,
    Instruction,
    JobIdle,
    JobRefused,
    KillWorker,
    Leaving,
    LetGo,
    StartWorker,
    Stop,
    Submitted,
    TellFailed,
    TellLeaving,
    TellQueued,
    TellStarted,
    TellWanted,
    Tick,
    WorkerClosed,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerReady,
    WorkerSilent,
)
from fdt.pool.state.pool_state import PoolState
from fdt.pool.state.worker_starts import Processes

TIMING = Timing(warm_s=100.0, join_s=50.0, settle_s=0.5)
# A process a worker; and one for all workers of a job on one host.
MODES: Mapping[str, Processes] = {"sync": lambda num_workers: num_workers}


def ONE_PROCESS(num_workers: int) -> int:
    return 1


class Pool:
    """A state whose instructions pile up."""

    def __init__(self, num_workers: int = 2, modes: Mapping[str, Processes] = MODES) -> None:
        self.state = PoolState(num_workers, modes, TIMING)
        self.out: list[Instruction] = []
        self(Tick(0.0))

    def __call__(self, *events: Event) -> list[Instruction]:
        new = [instruction for event in events for instruction in self.state.handle(event)]
        self.out += new
        return new

    def warm(self, time_s: float = 1.0) -> None:
        """Gets all starting workers ready."""
        for name, worker in list(self.state.workers.items()):
            if worker.state is WorkerState.STARTING:
                self(WorkerReady(time_s, name))

    def submit(
        self, job: str = "a", num_workers: int = 2, time_s: float = 2.0, mode: str = "sync", session: bytes = b""
    ) -> list[Instruction]:
        return self(Submitted(time_s, job, mode, num_workers, session=session))

    def running(self, job: str = "a") -> tuple[str, ...]:
        """Brings a new job to run on all workers; returns their names by rank."""
        self.warm()
        self.submit(job, self.state.hosts.num_workers)
        workers = self.state.jobs[job].workers
        self(*(WorkerJoined(3.0, name) for name in workers))
        return workers

    def state_of(self, job: str = "a") -> JobState:
        return self.state.jobs[job].state

    def failure(self, job: str = "a") -> TellFailed:
        found = [i for i in self.out if isinstance(i, TellFailed) and i.job == job]
        assert len(found) == 1, "a job fails once"
        return found[0]


_Kind = TypeVar("_Kind", bound=Instruction)


def only(kind: type[_Kind], out: list[Instruction]) -> list[_Kind]:
    return [instruction for instruction in out if isinstance(instruction, kind)]


def failed(worker: str, time_s: float, noticed_s: float = 5.0, error: str = "WorkerError") -> WorkerFailed:
    return WorkerFailed(time_s, worker, error, f"from {worker}", noticed_s)


def test_first_tick_starts_the_workers() -> None:
    pool = Pool(2)
    assert pool.out == [StartWorker("sync-1", "sync"), StartWorker("sync-2", "sync")]


def test_no_more_processes_than_jobs_can_take() -> None:
    modes = {**MODES, "async": ONE_PROCESS}
    for max_jobs, expected in ((None, ["sync"] * 3 + ["async"] * 3), (1, ["sync"] * 3 + ["async"])):
        started = only(StartWorker, list(PoolState(3, modes, TIMING, max_jobs).handle(Tick(0.0))))
        assert [instruction.mode for instruction in started] == expected


def test_what_was_kept_for_a_session_is_held_for_its_next_job() -> None:
    pool = Pool(4)
    pool.warm()
    pool.submit("a", 2, session=b"mine")
    first, _ = pool.state.jobs["a"].workers
    out = pool(WorkerExited(10.0, first, -9))
    assert pool.state_of("a") is JobState.FAILED and not only(LetGo, out)
    assert pool.state.jobs.held == {b"mine": 10.0 + TIMING.hold_s}
    pool.submit("b", 2, time_s=11.0, session=b"mine")
    pool(*(WorkerJoined(12.0, name) for name in pool.state.jobs["b"].workers))
    assert not only(LetGo, pool(Tick(10.0 + TIMING.hold_s))), "its client came back in time"
    # A client whose connection broke comes before the pool has heard of that.
    out = pool.submit("c", 2, time_s=200.0, session=b"mine")
    assert pool.state_of("b") is JobState.CANCELLED and pool.state.jobs["b"].reason == "goes on as c"
    assert only(EndJob, out) == [EndJob("b")] and not only(LetGo, out)
    # One that ends well needs nothing any more.
    pool.warm(201.0)
    pool(Closing(202.0, "c", 0), *(WorkerClosed(202.0, name) for name in pool.state.jobs["c"].workers))
    assert only(LetGo, pool.out) == [LetGo(b"mine")]


def test_what_was_kept_for_a_client_that_stays_away_is_let_go() -> None:
    pool = Pool()
    pool.warm()
    pool.submit(session=b"mine")
    assert not only(LetGo, pool(ClientGone(20.0, "a")))
    assert only(LetGo, pool(Tick(20.0 + TIMING.hold_s))) == [LetGo(b"mine")]
    assert not pool.state.jobs.held


def test_who_has_lost_the_others_is_no_cause() -> None:
    pool = Pool()
    first, second = pool.running()
    pool(failed(first, time_s=5.0, error="WorkerLostError"), failed(second, time_s=5.2))
    assert (pool.failure().rank, pool.failure().error) == (1, "WorkerError")


def test_whole_life() -> None:
    pool = Pool()
    pool.warm()
    assert pool.submit() == [Assign("a", ("sync-1", "sync-2"))]
    assert pool.state_of() is JobState.STARTING
    assert pool(WorkerJoined(3.0, "sync-2")) == []
    assert pool(WorkerJoined(3.0, "sync-1")) == [TellStarted("a")]
    assert pool.state_of() is JobState.RUNNING
    assert pool(WorkerClosed(4.0, "sync-1")) == []
    out = pool(WorkerClosed(4.0, "sync-2"))
    assert out[:3] == [EndWorker("sync-1"), EndWorker("sync-2"), EndJob("a")]
    assert out[3:] == [StartWorker("sync-3", "sync"), StartWorker("sync-4", "sync")], "at once, not when they are gone"
    assert pool.state_of() is JobState.FINISHED
    assert pool(WorkerExited(5.0, "sync-1", 0), WorkerExited(5.0, "sync-2", 0)) == []


def test_waits_for_workers_to_get_ready() -> None:
    pool = Pool()
    assert pool.submit() == [TellQueued("a", 1, "workers are starting")]
    assert pool(WorkerReady(3.0, "sync-1")) == []
    assert pool(WorkerReady(3.0, "sync-2")) == [Assign("a", ("sync-1", "sync-2"))]


def test_queue_moves_up_and_nobody_overtakes() -> None:
    pool = Pool()
    pool.running("a")
    assert pool.submit("b", 2) == [TellQueued("b", 1, "2 of 2 worker(s) are busy")]
    assert pool.submit("c", 1) == [TellQueued("c", 2, "1 job(s) ahead")]
    assert pool.submit("d", 1) == [TellQueued("d", 3, "2 job(s) ahead")]
    out = pool(ClientGone(5.0, "c"))
    assert TellQueued("d", 2, "1 job(s) ahead") in out and EndJob("c") in out
    pool(ClientGone(6.0, "a"))
    assert pool(WorkerReady(7.0, "sync-3")) == [], "one is enough for d, but b is first"
    assert pool(WorkerReady(7.0, "sync-4"))[0] == Assign("b", ("sync-3", "sync-4"))


def test_two_small_jobs_at_once() -> None:
    pool = Pool()
    pool.warm()
    assert pool.submit("a", 1) == [Assign("a", ("sync-1",))]
    assert pool.submit("b", 1) == [Assign("b", ("sync-2",))]
    assert pool.state.num_busy == 2


def test_modes_share_the_workers() -> None:
    pool = Pool(2, {**MODES, "async": ONE_PROCESS})
    pool.warm()
    pool.submit("a", 2, mode="async")
    assert pool.state_of() is JobState.STARTING
    assert pool.submit("b", 1) == [TellQueued("b", 1, "2 of 2 worker(s) are busy")]


@pytest.mark.parametrize(
    ("mode", "num_workers", "error"),
    [("sync", 3, "CapacityError"), ("sync", 0, "UsageError"), ("fast", 1, "UsageError")],
)
def test_impossible_jobs_are_refused(mode: str, num_workers: int, error: str) -> None:
    pool = Pool()
    pool.warm()
    out = pool.submit("a", num_workers, mode=mode)
    assert only(TellFailed, out)[0].error == error and out[-1] == EndJob("a")
    assert pool.state.num_busy == 0


def test_too_many_waiting() -> None:
    pool = Pool()
    for number in range(DEFAULT.queued_jobs):
        pool.submit(f"job-{number}")
    assert only(TellFailed, pool.submit("one more"))


def test_death_is_the_cause_before_and_after_the_others_errors() -> None:
    pool = Pool()
    first, second = pool.running()
    pool(failed(second, time_s=5.0))
    assert pool.state_of() is JobState.RUNNING, "the error waits a moment for a better explanation"
    out = pool(WorkerExited(5.1, first, -9, "last words"))
    cause = pool.failure()
    assert (cause.rank, cause.error) == (0, "WorkerLostError")
    assert "SIGKILL" in cause.message and "last words" in cause.message and "Rank 0" in cause.message
    assert KillWorker(second) in out and KillWorker(first) in out
    assert pool(failed(second, 5.2), WorkerExited(5.3, second, -9)) == []
    assert pool.failure() == cause


def test_earliest_error_wins_whoever_is_heard_first() -> None:
    pool = Pool()
    first, second = pool.running()
    pool(failed(first, time_s=5.2), failed(second, time_s=5.1))
    assert pool.failure().message == f"from {second}" and pool.failure().rank == 1


def test_lone_error_settles_by_time() -> None:
    pool = Pool()
    first, _ = pool.running()
    pool(failed(first, time_s=5.0, noticed_s=5.0))
    assert pool.state.next_deadline_s() == 5.5
    assert pool(Tick(5.4)) == []
    pool(Tick(5.5))
    assert pool.failure().rank == 0 and pool.state_of() is JobState.FAILED


def test_exit_after_its_own_error_is_not_the_cause() -> None:
    pool = Pool()
    first, second = pool.running()
    pool(failed(second, time_s=5.2), failed(first, time_s=5.1))
    assert pool.failure().message == f"from {first}"
    pool = Pool(1)
    (only_one,) = pool.running()
    pool(failed(only_one, time_s=5.0), WorkerExited(5.1, only_one, 1))
    assert pool.failure().message == f"from {only_one}"


def test_exit_after_closed_is_no_failure() -> None:
    pool = Pool()
    first, second = pool.running()
    pool(WorkerClosed(5.0, first), WorkerExited(5.1, first, 0), WorkerClosed(5.2, second))
    assert pool.state_of() is JobState.FINISHED


def test_cause_that_has_exited_meanwhile() -> None:
    pool = Pool()
    first, _ = pool.running()
    pool(failed(first, time_s=5.0), WorkerExited(5.1, first, 1), Tick(5.5))
    assert (pool.failure().rank, pool.failure().message) == (0, f"from {first}")


def test_silent_worker_is_named_and_killed() -> None:
    pool = Pool()
    _, second = pool.running()
    out = pool(WorkerSilent(20.0, second, 11.0))
    assert "Rank 1" in pool.failure().message and "11 s" in pool.failure().message
    assert KillWorker(second) in out
    assert pool(WorkerSilent(21.0, second, 12.0)) == []


def test_silent_warm_worker_is_replaced() -> None:
    pool = Pool()
    pool.warm()
    assert pool(WorkerSilent(20.0, "sync-1", 11.0)) == [KillWorker("sync-1"), StartWorker("sync-3", "sync")]


def test_dead_warm_worker_is_replaced() -> None:
    pool = Pool()
    pool.warm()
    assert pool(WorkerExited(2.0, "sync-2", -9)) == [StartWorker("sync-3", "sync")]


def test_death_of_a_starting_job() -> None:
    pool = Pool()
    pool.warm()
    pool.submit()
    pool(WorkerJoined(3.0, "sync-1"), WorkerExited(3.1, "sync-2", -11))
    assert "SIGSEGV" in pool.failure().message
    assert only(TellStarted, pool.out) == []


def test_never_joined() -> None:
    pool = Pool()
    pool.warm()
    pool.submit(time_s=2.0)
    pool(WorkerJoined(3.0, "sync-1"))
    assert pool.state.next_deadline_s() == 52.0
    pool(Tick(52.0))
    assert "[1]" in pool.failure().message and pool.failure().rank == 1


def test_three_failed_starts_fail_the_queue_and_a_new_job_tries_again() -> None:
    pool = Pool(1)
    pool.submit("a", 1)
    for number in (1, 2):
        assert pool(WorkerExited(3.0, f"sync-{number}", 1)) == [StartWorker(f"sync-{number + 1}", "sync")]
    out = pool(WorkerExited(3.0, "sync-3", 1, "ImportError: no runtime"))
    assert "exit status 1" in pool.failure().message and "ImportError: no runtime" in pool.failure().message
    assert only(StartWorker, out) == []
    assert only(StartWorker, pool.submit("b", 1)) == [StartWorker("sync-4", "sync")]


def test_slow_start_counts_as_failed() -> None:
    pool = Pool(1)
    pool.submit("a", 1)
    for number in (1, 2, 3):
        pool(Tick(100.0 * number))
    assert "not ready after 100 s" in pool.failure().message


def end_while_waiting(pool: Pool, time_s: float, status: int = 1) -> list[Instruction]:
    """Gets the newest worker ready and ends it."""
    name = list(pool.state.workers)[-1]
    return pool(WorkerReady(time_s, name), WorkerExited(time_s + 1, name, status, "no more room"))


def test_workers_that_end_while_they_wait_are_not_started_without_end() -> None:
    pool = Pool(1)
    assert [len(only(StartWorker, end_while_waiting(pool, 10.0 * n))) for n in (1, 2, 3)] == [1, 1, 0]
    assert not pool.state.workers
    assert only(StartWorker, pool.submit("a", 1)) == [StartWorker("sync-4", "sync")], "its sender may have mended it"


def test_who_waits_for_workers_that_end_while_they_wait_is_told_the_reason() -> None:
    pool = Pool(2)
    pool.submit("a", 2)
    # One of the two waits for the other, and ends.
    for number in (1, 2, 3):
        end_while_waiting(pool, 10.0 * number)
    message = pool.failure("a").message
    assert "3 in a row did not get to serve a job. The last ended with exit status 1, while it waited" in message
    assert "no more room" in message


@pytest.mark.parametrize("proof", ["serves", "waits"])
def test_a_worker_that_has_proven_itself_begins_the_count_anew(proof: str) -> None:
    pool = Pool(1)
    pool(WorkerExited(1.0, "sync-1", 1), WorkerExited(1.0, "sync-2", 1), WorkerReady(2.0, "sync-3"))
    if proof == "serves":
        pool.submit("a", 1)
        pool(WorkerJoined(3.0, "sync-3"), Closing(4.0, "a", 0), WorkerClosed(4.0, "sync-3"))
    else:
        assert pool.state.next_deadline_s() == 2.0 + 2 * TIMING.heartbeat_limit_s
        pool(Tick(2.0 + 2 * TIMING.heartbeat_limit_s))
    pool(WorkerExited(30.0, "sync-3", 0))
    assert pool(WorkerExited(31.0, "sync-4", 1)) == [StartWorker("sync-5", "sync")]
    assert pool(WorkerExited(32.0, "sync-5", 1)) == [StartWorker("sync-6", "sync")]
    assert pool(WorkerExited(33.0, "sync-6", 1)) == []


def test_what_ends_all_that_wait_is_one_failure() -> None:
    pool = Pool(4)
    pool.warm(1.0)
    out = pool(*(WorkerExited(2.0, name, -9) for name in list(pool.state.workers)))
    assert len(only(StartWorker, out)) == 4


def test_workers_that_fall_silent_while_they_wait_are_not_started_without_end() -> None:
    pool = Pool(1)
    for number in (1, 2, 3):
        name = f"sync-{number}"
        out = pool(WorkerReady(20.0 * number, name), WorkerSilent(20.0 * number + 11, name, 10.5))
        assert KillWorker(name) in out
        pool(WorkerExited(20.0 * number + 12, name, -9))
    assert not pool.state.workers


def test_cancel_is_told_and_client_gone_is_not() -> None:
    pool = Pool()
    pool.running("a")
    pool(Cancelled(5.0, "a"))
    assert pool.failure("a").error == "JobCancelledError" and pool.state_of("a") is JobState.CANCELLED
    pool.warm()
    pool.running("b")
    out = pool(ClientGone(6.0, "b"))
    assert only(TellFailed, out) == [] and len(only(KillWorker, out)) == 2
    assert pool.state_of("b") is JobState.CANCELLED


@pytest.mark.parametrize(
    ("exit_status", "expected"), [(0, JobState.FINISHED), (3, JobState.FINISHED), (130, JobState.CANCELLED)]
)
def test_a_client_that_said_goodbye_may_hang_up_before_its_workers_have_ended(
    exit_status: int, expected: JobState
) -> None:
    pool = Pool()
    pool.running("a")
    pool(Closing(5.0, "a", exit_status), WorkerClosed(5.0, "sync-1"), ClientGone(5.0, "a"))
    assert pool.state_of("a") is expected
    pool(WorkerClosed(5.1, "sync-2"))
    assert pool.state_of("a") is expected


def test_refused_program() -> None:
    pool = Pool()
    pool.running()
    pool(JobRefused(5.0, "a", "ProgramRefusedError", "no"))
    assert pool.failure() == TellFailed("a", "ProgramRefusedError", "no", -1, 5.0)


def test_what_comes_after_the_end_is_ignored() -> None:
    pool = Pool()
    first, second = pool.running()
    pool(Cancelled(5.0, "a"))
    late = [
        ClientGone(6.0, "a"),
        Cancelled(6.0, "a"),
        JobRefused(6.0, "a", "WorkerError", "late"),
        WorkerJoined(6.0, first),
        WorkerClosed(6.0, second),
        failed(first, 4.0),
        WorkerReady(6.0, first),
        WorkerSilent(6.0, first, 9.0),
        WorkerExited(6.0, first, -9),
        WorkerExited(6.0, first, -9),
        WorkerReady(6.0, "nobody"),
        ClientGone(6.0, "nothing"),
    ]
    assert pool(*late) == []


def test_old_jobs_are_forgotten() -> None:
    pool = Pool()
    for number in range(DEFAULT.remembered_jobs + 10):
        pool.submit(f"job-{number}", 3)
    assert len(pool.state.jobs) == DEFAULT.remembered_jobs and "job-0" not in pool.state.jobs


@pytest.mark.parametrize(
    ("status", "out_of_memory", "cause"),
    [
        (-9, True, "The system killed it for want of memory"),
        (-9, False, "Somebody killed it, or the system did"),
        (-6, True, "A library stopped it"),
        (-7, False, "The disk or /dev/shm is full"),
    ],
)
def test_the_cause_comes_before_the_log(status: int, out_of_memory: bool, cause: str) -> None:
    pool = Pool()
    first, _ = pool.running()
    event = WorkerExited(5.1, first, status, "its log", " after 7 steps, with 5.1 GB of memory in use", out_of_memory)
    pool(event)
    message = pool.failure("a").message
    begins = (
        f"Rank 0 of job a ended with {describe_status(status)} after 7 steps, with 5.1 GB of memory in use. {cause}"
    )
    assert message.startswith(begins) and message.endswith(" The end of its log: its log"), message


def test_a_job_that_is_cancelled_in_the_queue_says_that_nothing_was_trained() -> None:
    pool = Pool()
    pool.submit("a", 1)
    pool(Cancelled(5.0, "a"))
    assert "nothing has been trained" in pool.failure("a").message
    started = Pool()
    started.running()
    started(Cancelled(5.0, "a"))
    assert "trained" not in started.failure("a").message


@pytest.mark.parametrize(("status", "words"), [(0, "exit status 0"), (-9, "SIGKILL"), (-64, "signal 64")])
def test_status_in_words(status: int, words: str) -> None:
    assert words in describe_status(status)


def test_a_pool_without_jobs_goes_down_at_once() -> None:
    pool = Pool()
    assert only(Stop, pool(Leaving(3.0, 10.0)))
    pool = Pool()
    workers = pool.running()
    pool(*(WorkerClosed(4.0, name) for name in workers))
    assert only(Stop, pool(Leaving(5.0, 10.0)))


def test_running_jobs_have_their_time_and_waiting_ones_come_again() -> None:
    pool = Pool()
    pool.running("a")
    pool.submit("b")
    out = pool(Leaving(5.0, 10.0))
    assert only(TellLeaving, out) == [TellLeaving("a", 10.0)] and not only(Stop, out)
    (told,) = only(TellFailed, out)
    assert isinstance(told, TellFailed) and (told.job, told.error) == ("b", "PoolRestartingError")
    assert pool.state_of("b") is JobState.INTERRUPTED and pool.state.is_leaving
    assert pool.state.next_deadline_s() == 15.0
    (refused,) = only(TellFailed, pool.submit("c", time_s=6.0))
    assert isinstance(refused, TellFailed) and refused.error == "PoolRestartingError"
    # The client has what it needs, and lets go.
    assert only(Stop, pool(ClientGone(7.0, "a")))
    assert (pool.state_of("a"), pool.state.jobs["a"].reason) == (
        JobState.INTERRUPTED,
        "the pool went down to be started again",
    )
    assert not only(StartWorker, pool(Tick(8.0)))


def test_who_does_not_let_go_is_put_away_when_the_time_is_over() -> None:
    pool = Pool()
    workers = pool.running("a")
    pool(Leaving(5.0, 10.0))
    assert not only(TellFailed, pool(Tick(14.9)))
    assert pool(Leaving(14.9, 10.0)) == [], "once is enough"
    out = pool(Tick(15.0))
    (told,) = only(TellFailed, out)
    assert isinstance(told, TellFailed) and told.error == "PoolRestartingError"
    assert [each.worker for each in only(KillWorker, out) if isinstance(each, KillWorker)] == list(workers)
    assert only(Stop, out)


def test_a_job_that_is_cancelled_while_the_pool_goes_down_is_told_so() -> None:
    pool = Pool()
    pool.running("a")
    pool(Leaving(5.0, 10.0))
    (told,) = only(TellFailed, pool(Cancelled(6.0, "a")))
    assert isinstance(told, TellFailed) and told.error == "JobCancelledError"


def test_jobs_of_the_pool_before_say_where_they_go_on() -> None:
    before = [Job(f"job-{n}", "sync", 2, "t.py", 1.0, session=b"s", state=JobState.INTERRUPTED) for n in (1, 2)]
    state = PoolState(2, MODES, TIMING, before=before)
    assert state.num_busy == 0
    state.handle(Submitted(2.0, "job-3", "sync", 2, session=b"s"))
    state.handle(Submitted(3.0, "job-4", "sync", 2, session=b"s"))
    assert [state.jobs[name].reason for name in ("job-1", "job-2", "job-3")] == [
        "goes on as job-3",
        "goes on as job-3",
        "goes on as job-4",
    ]


def test_what_a_worker_took_beyond_its_bounds_is_the_steps_own_fault() -> None:
    pool = Pool()
    workers = pool.running("a")
    over = "used 2.10 GB of memory, and may use 2.00 GB (--memory)"
    (told,) = only(TellFailed, pool(WorkerExited(5.0, workers[1], -9, "last words", " after 7 steps", False, over)))
    assert isinstance(told, TellFailed) and told.error == "WorkerError"
    assert told.message.startswith(f"Rank 1 of job a {over}. It was ended after 7 steps;")


def elastic(pool: Pool, job: str, num_workers: int, least: int, time_s: float = 2.0) -> list[Instruction]:
    return pool(Submitted(time_s, job, "sync", num_workers, least_workers=least))


def test_an_elastic_job_is_asked_once_for_what_the_first_in_the_queue_lacks() -> None:
    pool = Pool(4)
    pool.warm()
    elastic(pool, "a", 4, 2)
    pool(*(WorkerJoined(3.0, name) for name in pool.state.jobs["a"].workers))
    assert only(TellWanted, elastic(pool, "b", 1, 1)) == [TellWanted("a", 1)]
    assert only(TellWanted, pool(Tick(5.0))) == []
    # Its client lets go of the job and asks for another with fewer; nobody comes before those that waited.
    pool(ClientGone(6.0, "a"))
    pool.warm(7.0)
    assert pool.state.jobs["b"].state is JobState.STARTING
    elastic(pool, "a2", 3, 2, 8.0)
    pool.warm(9.0)
    assert pool.state.jobs["a2"].state is JobState.STARTING


def test_nobody_is_asked_for_what_would_not_be_enough() -> None:
    pool = Pool(4)
    pool.warm()
    elastic(pool, "a", 4, 3)
    pool(*(WorkerJoined(3.0, name) for name in pool.state.jobs["a"].workers))
    assert only(TellWanted, elastic(pool, "b", 2, 2)) == []


def test_a_job_none_of_whose_workers_does_anything_is_lost() -> None:
    pool = Pool()
    pool.running("a")
    (told,) = only(TellFailed, pool(JobIdle(500.0, "a", 181.0)))
    assert isinstance(told, TellFailed) and told.error == "WorkerLostError"
    assert "in the first step of a program none of them has used its processor for 181 s" in told.message
