"""Events that are written down are told again, and give the same instructions."""

import json
import stat
from pathlib import Path

import pytest

from fdt.base.config import PlacingConfig
from fdt.base.limits import DEFAULT
from fdt.errors import FailedStep, UsageError
from fdt.pool.event_log import EventLog
from fdt.pool.state.entities import Job, JobState
from fdt.pool.state.events import (
    Closing,
    Event,
    HostGone,
    HostJoined,
    Leaving,
    Tick,
    WorkerClosed,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerReady,
)
from fdt.pool.state.pool_state import PoolState
from tests.helpers.replay import replay
from tests.unit.test_jobs import MODES, ONE_PROCESS, TIMING, Pool

_STEP = FailedStep(3, 1, 2)


class Recorded(Pool):
    """A pool of two modes, with a scheduler and a job of before, whose events are written down."""

    def __init__(self, log: EventLog) -> None:
        modes, ended = {**MODES, "async": ONE_PROCESS}, Job("old", "sync", 1, "x.py", 0.0, state=JobState.FINISHED)
        placing = PlacingConfig("slurm", 0, 2, Path("/shared"), tls_ca="secret")
        noted = log.began(2, modes, TIMING, None, DEFAULT, [ended], placing)
        self.state, self.out, self._log = PoolState(2, noted, TIMING, None, DEFAULT, [ended], placing), [], log
        self(Tick(0.0))

    def __call__(self, *told: Event) -> list:
        new = []
        for event in told:
            answered = self.state.handle(event)
            self._log.add(event, answered)
            new += answered
        self.out += new
        return new


def life(pool: Pool) -> None:
    """A job that ends, one whose worker fails and is killed, and a pool that is told to leave."""
    workers = pool.running("a")
    pool(*(WorkerClosed(4.0, name) for name in workers), Closing(4.5, "a", 0))
    pool(HostJoined(5.0, "host-1", "box", 2, True))
    pool.warm(6.0)
    pool.submit("b", 4, 7.0, session=b"who has this finds what is kept")
    started = pool.state.jobs["b"].workers
    pool(*(WorkerJoined(8.0, name) for name in started[:-1]), WorkerReady(8.0, started[-1]))
    pool(
        WorkerFailed(9.0, started[0], "StepError", "bad: \x1b[2J", 9.1, _STEP), WorkerExited(9.2, started[1], -9, "log")
    )
    pool(Tick(9.0 + TIMING.settle_s), HostGone(10.0, "host-1", "fell silent"), Leaving(11.0, 30.0), Tick(12.0))


def test_the_same_events_give_the_same_instructions(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        pool = Recorded(log)
        life(pool)
    again = replay(path)
    assert [(job.name, job.state, job.reason) for job in again.jobs.values()] == [
        (job.name, job.state, job.reason) for job in pool.state.jobs.values()
    ]
    assert again.jobs["b"].state is JobState.FAILED and again.jobs["old"].state is JobState.FINISHED
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert "secret" not in text and b"who has this finds what is kept".hex() not in text


def test_another_answer_is_noticed(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events") as log:
        life(Recorded(log))
    lines = (tmp_path / "events").read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if '"Assign"' in line)
    changed = json.loads(lines[number])
    changed["instructions"] = changed["instructions"][:-1]
    lines[number] = json.dumps(changed)
    (tmp_path / "changed").write_text("\n".join(lines))
    with pytest.raises(AssertionError, match="event "):
        replay(tmp_path / "changed")


def test_a_full_log_keeps_the_beginning_and_can_be_replayed(tmp_path: Path) -> None:
    path, most = tmp_path / "events", 9_000
    with EventLog(path, most) as log:
        pool = Recorded(log)
        life(pool)
        for second in range(200):
            pool(Tick(20.0 + second))
    assert most - 500 < path.stat().st_size <= most + len('{"full":true}\n')
    assert path.read_text().endswith('{"full":true}\n')
    replay(path)


def test_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("mine")
    with pytest.raises(UsageError, match="name of a new file"):
        EventLog(tmp_path / "events")
    assert (tmp_path / "events").read_text() == "mine"
