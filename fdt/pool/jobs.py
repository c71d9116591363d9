"""Jobs, workers and hosts, as a pool knows them: where each is in its life.

A job is queued, starting (its workers meet), running, and then finished, failed or cancelled. A worker is starting
(imports its runtime), warm, serving one job, and leaving.
"""

import dataclasses
import enum
import signal

from fdt.pool import lifecycle
from fdt.pool.lifecycle import OWN_HOST


class JobState(enum.StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED)


class WorkerState(enum.Enum):
    """Where a worker process is in its life."""

    STARTING = enum.auto()
    WARM = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine of the pool; `slots` is how many workers may serve jobs there at once."""

    name: str
    label: str
    slots: int


@dataclasses.dataclass
class Worker:
    """A worker process, as the pool knows it."""

    name: str
    mode: str
    since_s: float
    host: str = OWN_HOST
    state: WorkerState = WorkerState.STARTING
    job: str | None = None
    rank: int = -1


@dataclasses.dataclass
class Job:
    """A job, as the pool knows it."""

    name: str
    mode: str
    num_workers: int
    script: str
    submitted_s: float
    needs_pool: bool = False
    state: JobState = JobState.QUEUED
    started_s: float = 0.0
    ended_s: float = 0.0
    reason: str = ""
    # Hosts and how many workers of the job each has.
    places: tuple[tuple[str, int], ...] = ()
    # Its processes; the place is the rank.
    workers: tuple[str, ...] = ()
    joined: set[str] = dataclasses.field(default_factory=set)
    closed: set[str] = dataclasses.field(default_factory=set)
    # What workers said of their failure. The first to speak need not be the first to have failed.
    failures: dict[str, lifecycle.WorkerFailed] = dataclasses.field(default_factory=dict)
    told: tuple[int, str] = (0, "")
    # Of the script, once its client closes the job.
    exit_status: int | None = None


def describe_status(status: int) -> str:
    """Returns what an exit status of `subprocess` means, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
