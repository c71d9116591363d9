"""The keeper of a pool's hosts, on a scheduler in memory: what it asks for, takes back, replaces and tells. No thread runs."""

import dataclasses
import stat
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fdt.base.config import Network, PlacingConfig, Timing
from fdt.errors import UsageError
from fdt.pool.reconciler import Reconciler, shared_folder, write
from fdt.pool.scheduling.request import File, HostRequest, Observation, Rendering, SchedulerUnreachableError
from fdt.pool.state.events import Event, HostsRefused, HostsWait

TIMING = dataclasses.replace(Timing(), stop_s=0.0, sweep_s=5.0, look_s=0.01)
# How far a host came.
ASKED, JOINED, WORKED = "asked for", "joined", "worked"
NETWORK = Network("eth0", "10.0.0.1", "10.0.0.0/24")


class InMemory:
    """Grants what it has room for; the rest waits."""

    def __init__(self, room: int = 9, restarts: bool = False) -> None:
        self.room, self.restarts = room, restarts
        # By its own names, in the order of their coming.
        self.requests: dict[str, HostRequest] = {}
        self.states: dict[str, str] = {}
        self.refuses = ""
        self.away = False
        self.began = threading.Semaphore(0)

    def render(self, request: HostRequest) -> Rendering:
        return Rendering((File("join-token", request.token, 0o600), File(f"{request.name}.sh", "true", 0o700)), ())

    def check(self, request: HostRequest) -> None:
        pass

    def start(self, request: HostRequest) -> str:
        self._answer()
        if self.refuses:
            raise UsageError(self.refuses)
        name = f"n{len(self.requests) + 1}"
        self.requests[name] = request
        self.began.release()
        self.states[name] = "running" if list(self.states.values()).count("running") < self.room else "pending"
        return name

    def observe(self, pool: str, started: Mapping[str, HostRequest]) -> Mapping[str, Observation]:
        self._answer()
        states = {name: self.states[name] for name in started}
        return {
            name: Observation(state == "pending", state == "ended", f"{state} ({name})", started[name].folder / "log")
            for name, state in states.items()
        }

    def stop(self, names: Sequence[str]) -> None:
        self._answer()
        for name in names:
            self.states[name] = "ended"

    def sweep(self, pool: str) -> None:
        assert {request.pool for request in self.requests.values()} <= {pool}
        self.stop(list(self.states))

    def _answer(self) -> None:
        if self.away:
            raise SchedulerUnreachableError("it is away")

    @property
    def running(self) -> list[str]:
        return [name for name, state in self.states.items() if state != "ended"]


class Kept(Reconciler):
    """A keeper that is asked what to do now."""

    def __init__(self, directory: Path, scheduler: InMemory, most: int = 4) -> None:
        self.events: list[Event] = []
        self.scheduler = scheduler
        config = PlacingConfig("slurm", 0, most, directory / "shared")
        template = HostRequest.of(config, NETWORK, "10.0.0.1:7077", "secret", pool="fdt-a")
        super().__init__(scheduler, template, TIMING, self.events.append)

    def now(self, wanted: int | None = None) -> list[str]:
        """Settles, and returns what is on the scheduler then."""
        if wanted is not None:
            self.want(wanted)
        self._settle()
        return self.scheduler.running

    def joins(self, *names: str) -> None:
        for name in names:
            assert self.joined(self.scheduler.requests[name].name)

    def leaves(self, name: str, fault: str = "") -> None:
        self.left(self.scheduler.requests[name].name, fault)

    def goes(self, name: str, stage: str) -> None:
        """Ends a host at a stage of its life."""
        if stage != ASKED:
            self.joins(name)
        if stage == WORKED:
            self.works(self.scheduler.requests[name].name)
        if stage != ASKED:
            self.leaves(name, "its workers do not start")
        self.scheduler.states[name] = "ended"

    @property
    def said(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, HostsWait)]

    @property
    def files(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()}


@pytest.fixture
def scheduler() -> InMemory:
    return InMemory()


@pytest.fixture
def reconciler(tmp_path: Path, scheduler: InMemory) -> Kept:
    return Kept(tmp_path, scheduler)


def test_the_scheduler_has_as_many_as_are_wanted(reconciler: Kept) -> None:
    assert reconciler.now() == []
    assert reconciler.now(2) == ["n1", "n2"]
    assert reconciler.now() == ["n1", "n2"]
    assert reconciler.now(3) == ["n1", "n2", "n3"]
    names = [request.name for request in reconciler.scheduler.requests.values()]
    assert names == ["a-1", "a-2", "a-3"]


def test_what_is_wanted_no_more_is_taken_back_the_newest_first(reconciler: Kept) -> None:
    reconciler.now(3)
    reconciler.joins("n3")
    assert reconciler.now(2) == ["n1", "n3"]
    assert reconciler.now(1) == ["n3"]
    assert reconciler.now(0) == ["n3"], "one that has joined is the pool's to give back"


def test_a_host_that_is_given_back_is_not_replaced(reconciler: Kept) -> None:
    reconciler.now(2)
    reconciler.joins("n1", "n2")
    reconciler.want(1)
    reconciler.leaves("n1")
    assert reconciler.now() == ["n2"] and reconciler.now() == ["n2"]


def test_a_host_that_is_lost_is_replaced_and_what_is_left_of_it_ended(reconciler: Kept) -> None:
    reconciler.now(2)
    reconciler.joins("n1", "n2")
    reconciler.leaves("n2")
    assert reconciler.now() == ["n1", "n3"]
    assert not reconciler.joined("a-2"), "which is not waited for any more"


def test_a_host_that_the_scheduler_begins_again_is_waited_for(reconciler: Kept) -> None:
    reconciler.now(1)
    reconciler.joins("n1")
    reconciler.scheduler.states["n1"] = "pending"
    reconciler.leaves("n1")
    assert reconciler.now() == ["n1"]
    reconciler.scheduler.states["n1"] = "running"
    reconciler.joins("n1")
    assert reconciler.now() == ["n1"]


def test_a_host_that_is_killed_is_waited_for_where_the_scheduler_begins_it_again(tmp_path: Path) -> None:
    reconciler = Kept(tmp_path, InMemory(restarts=True))
    reconciler.now(2)
    reconciler.joins("n1", "n2")
    reconciler.leaves("n2")
    assert reconciler.now() == ["n1", "n2"], "it runs, though it is not back yet"
    reconciler.joins("n2")
    reconciler.leaves("n2")
    reconciler.scheduler.states["n2"] = "ended"
    assert reconciler.now() == ["n1", "n3"], "it has been begun often enough"


def test_a_host_that_is_given_back_is_nobody_to_wait_for(tmp_path: Path) -> None:
    reconciler = Kept(tmp_path, InMemory(restarts=True))
    reconciler.now(1)
    reconciler.joins("n1")
    reconciler.want(0)
    reconciler.leaves("n1")
    assert reconciler.now() == ["n1"], "it says goodbye"
    assert reconciler.now(1) == ["n1"]
    reconciler.scheduler.states["n1"] = "ended"
    assert reconciler.now() == ["n2"]


def test_a_host_that_does_not_come_back_is_replaced(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.test_reconciler.TIMING", dataclasses.replace(TIMING, rejoin_s=0.0))
        reconciler = Kept(tmp_path, InMemory(restarts=True))
        reconciler.now(1)
        reconciler.joins("n1")
        reconciler.leaves("n1")
        assert reconciler.now() == ["n2"]


def test_who_was_not_asked_for_is_not_taken_for_one(reconciler: Kept) -> None:
    reconciler.now(1)
    assert not reconciler.joined("somebody")
    reconciler.joins("n1")
    assert not reconciler.joined("a-1"), "a second of the same name"
    reconciler.left("somebody")
    assert reconciler.now() == ["n1"]


def test_the_schedulers_reasons_are_told_once(tmp_path: Path) -> None:
    reconciler = Kept(tmp_path, InMemory(room=1))
    for _ in range(3):
        reconciler.now(2)
    assert reconciler.said == ["pending (n2), running (n1)"]
    reconciler.joins("n1")
    reconciler.now()
    reconciler.scheduler.states["n2"] = "running"
    reconciler.joins("n2")
    reconciler.now()
    assert reconciler.said[1:] == ["pending (n2)", ""]


def test_hosts_that_end_before_they_join_are_replaced_until_it_makes_no_sense(reconciler: Kept) -> None:
    for number in (1, 2):
        assert reconciler.now(1) == [f"n{number}"]
        reconciler.scheduler.states[f"n{number}"] = "ended"
    reconciler.now()
    (reconciler._folder / "log").write_text("ImportError: no such thing\n")
    reconciler.scheduler.states["n3"] = "ended"
    with pytest.raises(UsageError, match=r"3 hosts in a row .* ended \(n3\).*ImportError: no such thing"):
        reconciler.now()
    assert reconciler.scheduler.running == []


def test_a_folder_that_is_not_shared_is_seen_by_the_log_that_is_missing(reconciler: Kept) -> None:
    for _ in range(3):
        reconciler.now(1)
        reconciler.scheduler.states[reconciler.scheduler.running[-1]] = "ended"
    with pytest.raises(UsageError, match="is that folder shared with the node"):
        reconciler.now()


@pytest.mark.parametrize("stages", [(JOINED,) * 3, (ASKED, JOINED, ASKED)])
def test_hosts_that_cannot_serve_are_counted_whatever_stage_they_reached(
    reconciler: Kept, stages: Sequence[str]
) -> None:
    for stage in stages:
        (name,) = reconciler.now(1)
        reconciler.goes(name, stage)
    with pytest.raises(UsageError, match="3 hosts in a row could not serve a job") as refused:
        reconciler.now()
    assert ("its workers do not start" if stages[-1] == JOINED else "ended (n3)") in str(refused.value)
    assert reconciler.scheduler.running == [], "and no other is asked for"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_host_that_works_begins_the_count_anew(tmp_path: Path, restarts: bool) -> None:
    reconciler = Kept(tmp_path, InMemory(restarts=restarts))
    for stage in (ASKED, JOINED, WORKED, ASKED, JOINED):
        (name,) = reconciler.now(1)
        reconciler.goes(name, stage)
    assert reconciler.now() == ["n6"]


def test_hosts_that_are_given_back_before_they_work_have_not_failed(reconciler: Kept) -> None:
    for number in range(1, 6):
        assert reconciler.now(1) == [f"n{number}"]
        reconciler.joins(f"n{number}")
        reconciler.want(0)
        reconciler.leaves(f"n{number}")
        assert reconciler.now() == []


def test_who_wants_more_after_a_failure_is_given_another_try(reconciler: Kept) -> None:
    for _ in range(3):
        reconciler.goes(reconciler.now(1)[0], JOINED)
    for _ in range(2):
        with pytest.raises(UsageError):
            reconciler.now(1)
    assert reconciler.now(0) == []
    assert reconciler.now(1) == ["n4"]


def test_after_a_while_hosts_are_asked_for_again(tmp_path: Path) -> None:
    """With its thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.test_reconciler.TIMING", dataclasses.replace(TIMING, ask_again_s=0.01))
        reconciler, refused = Kept(tmp_path, InMemory()), threading.Event()
    reconciler._post = lambda event: refused.set() if isinstance(event, HostsRefused) else None
    for _ in range(3):
        reconciler.goes(reconciler.now(1)[0], JOINED)
    for _ in range(3):
        assert reconciler.scheduler.began.acquire(timeout=20.0)
    reconciler.start()
    assert refused.wait(20.0) and reconciler.scheduler.began.acquire(timeout=20.0)
    reconciler.close()


def test_a_refusal_leaves_nothing_behind(reconciler: Kept) -> None:
    reconciler.scheduler.refuses = "no such partition"
    with pytest.raises(UsageError, match="no such partition"):
        reconciler.now(1)
    assert not reconciler.joined("a-1")
    reconciler.scheduler.refuses = ""
    assert reconciler.now() == ["n1"]


def test_a_scheduler_that_is_away_is_asked_again(reconciler: Kept) -> None:
    reconciler.now(1)
    reconciler.scheduler.away = True
    for _ in range(2):
        with pytest.raises(SchedulerUnreachableError):
            reconciler.now(2)
    reconciler.scheduler.away = False
    assert reconciler.now() == ["n1", "n2"]


def test_files_go_with_their_hosts(reconciler: Kept) -> None:
    reconciler.now(2)
    assert reconciler.files == {"join-token", "a-1.sh", "a-2.sh"}
    reconciler.joins("n1", "n2")
    reconciler.want(1)
    reconciler.leaves("n1")
    reconciler.now()
    assert reconciler.files == {"join-token", "a-2.sh"}
    reconciler.close()
    assert not reconciler._folder.exists() and reconciler.scheduler.running == []


def test_the_end_is_told_of_if_the_scheduler_is_away(reconciler: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    reconciler.now(1)
    reconciler.scheduler.away = True
    reconciler.close()
    assert "hosts of fdt-a may be left on slurm" in capsys.readouterr().err


def test_only_its_owner_opens_the_folder_and_the_token(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path / "new" / "shared")
    write(Rendering((File("join-token", "secret\n", 0o600),), ()), folder)
    write(Rendering((File("join-token", "secret\n", 0o600),), ()), folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "join-token").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["join-token"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--shared-folder"):
        shared_folder(tmp_path / "file" / "shared")


def test_the_token_is_in_no_command() -> None:
    config = PlacingConfig("slurm", 0, 1, Path("/shared"))
    request = HostRequest.of(config, NETWORK, "0.0.0.0:7077", "secret", pool="fdt-a")
    assert "secret" not in " ".join(request.command()) and "secret" not in repr(request)
    assert "10.0.0.1:7077" in request.command(), "where hosts reach a pool that listens everywhere"


def test_whatever_goes_wrong_is_told_and_asked_again(tmp_path: Path) -> None:
    """With its thread."""
    scheduler, refused = InMemory(), threading.Event()
    reconciler = Kept(tmp_path, scheduler)
    reconciler._post = lambda event: refused.set() if isinstance(event, HostsRefused) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "start", lambda request: 1 / 0)
        reconciler.start()
        reconciler.want(1)
        assert refused.wait(20.0)
    reconciler.want(2)
    started = [scheduler.began.acquire(timeout=20.0) for _ in range(2)]
    assert started == [True, True]
    reconciler.close()
    assert scheduler.running == []
