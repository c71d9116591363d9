"""How a job is listed whose script has ended: as the script did, in whatever order the news of its end come."""

import itertools
from types import SimpleNamespace

import pytest

from fdt.base.limits import DEFAULT
from fdt.pool.access import Access, Caller
from fdt.pool.relay import JobRelay, Room
from fdt.pool.services.jobs import Jobs
from fdt.pool.state.entities import JobState
from fdt.pool.state.events import (
    Cancelled,
    ClientGone,
    Closing,
    EndJob,
    EndWorker,
    Event,
    KillWorker,
    Submitted,
    TellFailed,
    WorkerClosed,
)
from fdt.v1 import job_pb2
from tests.unit.test_jobs import Pool, only

NEWS: list[Event] = [
    WorkerClosed(5.0, "sync-1"),
    WorkerClosed(5.0, "sync-2"),
    ClientGone(5.0, "a"),
    Cancelled(5.0, "a"),
    Submitted(5.0, "b", "sync", 2, session=b"mine"),
]
CLOSE = job_pb2.Instruction(close=job_pb2.CloseJob())
OTHERS = {
    "fetched": job_pb2.Instruction(fetched=job_pb2.Fetched()),
    "shown": job_pb2.Instruction(shown=job_pb2.Shown(values={"loss": 1.0})),
}


@pytest.mark.parametrize(
    ("status", "state"), [(0, JobState.FINISHED), (3, JobState.FINISHED), (130, JobState.CANCELLED)]
)
def test_after_the_goodbye_nothing_changes_how_the_script_ended(status: int, state: JobState) -> None:
    for order in itertools.permutations(NEWS):
        pool = Pool(2)
        pool.warm()
        pool.submit("a", 2, session=b"mine")
        pool(Closing(4.0, "a", status), *order)
        assert pool.state_of() is state, order
        assert only(EndJob, pool.out)[0] == EndJob("a") and not only(TellFailed, pool.out), order


def test_a_job_whose_script_has_ended_can_still_be_made_an_end_of() -> None:
    pool = Pool(2)
    pool.running()
    out = pool(Closing(4.0, "a", 0), WorkerClosed(5.0, "sync-1"), Cancelled(5.0, "a"))
    assert only(EndWorker, out) == [EndWorker("sync-1")] and only(KillWorker, out) == [KillWorker("sync-2")]


def posted(*instructions: job_pb2.Instruction) -> list[type[Event]]:
    """Has the pool take what a client sends until its stream ends; returns the kinds of what it makes of that."""
    events: list[Event] = []
    seen = SimpleNamespace(shown=lambda *_: None)
    hosts, blobs = SimpleNamespace(drop=lambda _: None), SimpleNamespace(let_go=lambda *_: None)
    supervisor = SimpleNamespace(post=events.append, seen=seen, hosts=hosts, blobs=blobs)
    relay = JobRelay("a", Caller(), b"", DEFAULT, Room(1 << 20))
    jobs = Jobs(supervisor, SimpleNamespace(), Access(None))  # type: ignore[arg-type]
    jobs._take(relay, iter([each.SerializeToString() for each in instructions]))
    return [type(event) for event in events]


@pytest.mark.parametrize("last", OTHERS)
def test_what_a_client_says_after_its_goodbye_does_not_cancel_its_job(last: str) -> None:
    assert posted(CLOSE) == [Closing]
    assert posted(CLOSE, OTHERS[last]) == [Closing]
    assert posted(OTHERS[last]) == [Cancelled], "without a goodbye"
