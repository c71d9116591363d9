"""How many hosts a pool wants of a scheduler, and which it gives back: lists of events."""

from collections.abc import Mapping
from pathlib import Path

from fdt.base.config import PlacingConfig
from fdt.pool.state.entities import JobState
from fdt.pool.state.events import (
    Cancelled,
    DropHost,
    HostGone,
    HostJoined,
    HostsRefused,
    HostsWait,
    HostWorks,
    Instruction,
    StartWorker,
    Submitted,
    TellFailed,
    TellQueued,
    Tick,
    WantHosts,
    WorkerExited,
    WorkerJoined,
    WorkerReady,
)
from fdt.pool.state.pool_state import PoolState
from fdt.pool.state.worker_starts import Processes
from tests.unit.test_jobs import MODES, ONE_PROCESS, TIMING, Pool, only

IDLE_S = 30.0
PROOF_S = 2 * TIMING.heartbeat_limit_s


class Placed(Pool):
    """A pool that asks for hosts of two workers each."""

    def __init__(self, own: int = 0, least: int = 0, most: int = 3, modes: Mapping[str, Processes] = MODES) -> None:
        placing = PlacingConfig("slurm", least, most, Path("/shared"), slots=2, idle_s=IDLE_S)
        self.state = PoolState(own, modes, TIMING, placing=placing)
        self.out = []
        self(Tick(0.0))

    def wants(self, *events: object) -> list[int]:
        return [each.number for each in self(*events) if isinstance(each, WantHosts)]  # type: ignore[arg-type]

    def join(self, number: int, time_s: float = 2.0, placed: bool = True) -> list[Instruction]:
        begun = len(self.out)
        self(HostJoined(time_s, f"host-{number}", f"node{number}", 2, placed))
        self.warm(time_s)
        return self.out[begun:]

    def submit(self, name: str, num_workers: int, time_s: float = 1.0) -> list[Instruction]:
        return self(Submitted(time_s, name, "sync", num_workers))

    def runs(self, name: str) -> bool:
        return self.state.jobs[name].state is JobState.STARTING


def test_nothing_is_wanted_without_jobs() -> None:
    assert Placed().out == []
    assert Placed().state.hosts.capacity == 6


def test_as_many_hosts_as_the_queue_needs() -> None:
    pool = Placed()
    assert only(WantHosts, pool.submit("a", 1)) == [WantHosts(1)]
    assert only(WantHosts, pool.submit("b", 1)) == [], "both fit on one"
    assert only(WantHosts, pool.submit("c", 1)) == [WantHosts(2)]
    assert only(WantHosts, pool.submit("d", 6)) == [WantHosts(3)], "no more than the most"


def test_own_workers_come_first() -> None:
    pool = Placed(own=2)
    assert only(WantHosts, pool.submit("a", 2)) == []
    assert only(WantHosts, pool.submit("b", 1)) == [WantHosts(1)]


def test_workers_of_hosts_that_people_brought_count_too() -> None:
    pool = Placed()
    pool.join(1, placed=False)
    assert only(WantHosts, pool.submit("a", 2)) == [] and pool.runs("a")
    assert pool.state.hosts.capacity == 8


def test_a_job_waits_until_its_hosts_have_joined() -> None:
    pool = Placed()
    pool.submit("a", 4)
    assert pool.state.jobs["a"].told == (1, "2 more host(s) asked of slurm")
    pool.join(1)
    assert pool.state.jobs["a"].told == (1, "1 more host(s) asked of slurm") and not pool.runs("a")
    assert only(WantHosts, pool.join(2)) == [] and pool.runs("a")


def test_a_job_larger_than_all_hosts_is_refused() -> None:
    pool = Placed()
    (failed,) = only(TellFailed, pool.submit("a", 7))
    assert failed.error == "CapacityError" and "has 6 worker(s)" in failed.message
    assert only(WantHosts, pool.out) == []


def test_what_the_scheduler_says_is_told_to_who_waits() -> None:
    pool = Placed()
    pool.submit("a", 2)
    (told,) = only(TellQueued, pool(HostsWait(3.0, "pending (Resources)")))
    assert told.reason == "1 more host(s) asked of slurm: pending (Resources)"
    assert pool(HostsWait(4.0, "pending (Resources)")) == [], "once"


def test_a_host_works_once_a_worker_of_every_mode_is_ready_and_one_has_waited_long_enough() -> None:
    pool = Placed(modes={"sync": MODES["sync"], "async": ONE_PROCESS})
    started = only(StartWorker, pool(HostJoined(2.0, "host-1", "node1", 2, placed=True)))
    by_mode = {mode: [start.worker for start in started if start.mode == mode] for mode in ("sync", "async")}
    first, second = by_mode["sync"]
    assert only(HostWorks, pool(WorkerReady(3.0, first), Tick(3.0 + PROOF_S), WorkerReady(24.0, second))) == []
    assert only(HostWorks, pool(WorkerReady(25.0, by_mode["async"][0]))) == []
    assert only(HostWorks, pool(Tick(24.0 + PROOF_S))) == [HostWorks("host-1")]
    assert only(HostWorks, pool(Tick(25.0 + PROOF_S))) == [], "once"


def test_a_host_works_once_it_serves_a_job() -> None:
    pool = Placed()
    pool.submit("a", 2)
    assert only(HostWorks, pool.join(1)) == [] and pool.runs("a")
    first, second = (WorkerJoined(3.0, name) for name in pool.state.jobs["a"].workers)
    assert only(HostWorks, pool(first, second)) == [HostWorks("host-1")]


def test_a_host_whose_workers_end_while_they_wait_never_works_and_tells_why() -> None:
    pool = Placed()
    pool.submit("a", 4)
    out = pool(HostJoined(2.0, "host-1", "node1", 2, placed=True))
    for number in (1, 2, 3):
        worker = list(pool.state.workers)[-1]
        out += pool(WorkerReady(10.0 * number, worker), WorkerExited(10.0 * number + 1, worker, 1, "no more room"))
    (drop,) = only(DropHost, out)
    assert "while it waited for a job" in drop.reason and "no more room" in drop.reason and not drop.spare
    assert only(HostWorks, out) == [] and not pool.state.hosts.get("host-1")


def test_a_host_whose_workers_do_not_start_never_works_and_tells_why() -> None:
    pool = Placed()
    pool.submit("a", 2)
    out = list(pool(HostJoined(2.0, "host-1", "node1", 2, placed=True)))
    for _ in range(3):
        worker = next(iter(pool.state.workers))
        out += pool(WorkerExited(3.0, worker, 1, "cannot read ca.pem"))
    (drop,) = only(DropHost, out)
    assert "cannot start workers of mode sync" in drop.reason and "cannot read ca.pem" in drop.reason and not drop.spare
    assert only(HostWorks, out) == []
    (failed,) = only(TellFailed, pool(HostsRefused(4.0, f"3 hosts in a row could not serve a job; {drop.reason}")))
    assert failed.job == "a" and "cannot read ca.pem" in failed.message
    assert "cannot read ca.pem" in pool.state.jobs["a"].reason, "which `fdt jobs` lists"


def test_hosts_that_people_brought_are_not_the_keepers() -> None:
    assert only(HostWorks, Placed().join(1, placed=False)) == []


def test_a_refusal_fails_the_jobs_that_need_more_and_no_others() -> None:
    pool = Placed()
    pool.submit("a", 2)
    pool.join(1)
    pool.submit("b", 2)
    pool.submit("c", 4)
    failures = only(TellFailed, pool(HostsRefused(5.0, "Slurm refuses: no such partition.")))
    assert [(each.job, each.error) for each in failures] == [("c", "CapacityError")]
    assert "has 2 worker(s)" in failures[0].message and "no such partition" in failures[0].message
    assert pool.runs("a") and pool.state.jobs["b"].state is JobState.QUEUED


def test_a_host_without_work_is_given_back_in_time() -> None:
    pool = Placed()
    pool.submit("a", 2)
    pool.join(1)
    pool(Cancelled(10.0, "a"))
    assert pool.state.next_deadline_s() == 10.0 + IDLE_S
    assert only(DropHost, pool(Tick(10.0 + IDLE_S - 0.1))) == []
    out = pool(Tick(10.0 + IDLE_S))
    assert [(drop.host, drop.spare) for drop in only(DropHost, out)] == [("host-1", True)]
    assert only(WantHosts, out) == [WantHosts(0)]
    assert only(StartWorker, out) == []


def test_the_least_stay() -> None:
    pool = Placed(least=1)
    assert only(WantHosts, pool.out) == [WantHosts(1)]
    for number in (1, 2):
        pool.join(number, time_s=float(number))
    drops = only(DropHost, pool(Tick(1000.0)))
    assert [drop.host for drop in drops] == ["host-1"], "which has been idle for longest"
    assert only(DropHost, pool(Tick(2000.0))) == []


def test_hosts_that_people_brought_stay() -> None:
    pool = Placed()
    pool.join(1, placed=False)
    assert only(DropHost, pool(Tick(1000.0))) == []


def test_idle_hosts_stay_while_a_job_gathers_workers() -> None:
    pool = Placed()
    pool.submit("a", 6)
    pool.join(1)
    assert only(DropHost, pool(Tick(1000.0))) == []


def test_work_makes_the_time_begin_anew() -> None:
    pool = Placed()
    pool.submit("a", 2)
    pool.join(1)
    pool(Cancelled(10.0, "a"))
    pool.warm()
    pool.submit("b", 2, 20.0)
    for worker in pool.state.workers.values():
        assert worker.host == "host-1"
    pool(Cancelled(35.0, "b"))
    assert only(DropHost, pool(Tick(41.0))) == []
    assert len(only(DropHost, pool(Tick(65.1)))) == 1


def test_a_host_that_is_lost_is_wanted_again_when_its_job_comes_back() -> None:
    pool = Placed()
    pool.submit("a", 4)
    pool.join(1)
    pool.join(2)
    assert pool.runs("a")
    out = pool(HostGone(9.0, "host-2", "was lost"))
    assert [each.job for each in only(TellFailed, out)] == ["a"]
    assert only(WantHosts, out) == [WantHosts(1)], "nobody waits for it now"
    assert only(WantHosts, pool.submit("a-again", 4)) == [WantHosts(2)]


def test_what_is_not_needed_any_more_is_not_wanted_any_more() -> None:
    pool = Placed()
    pool.submit("a", 6)
    assert only(WantHosts, pool(Cancelled(3.0, "a"))) == [WantHosts(0)]
