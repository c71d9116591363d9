"""Jobs, workers and hosts as a pool knows them: where each is in its life.

A job is queued, starting (its workers meet), running, and then finished, failed or cancelled. A worker is starting
(imports its runtime), warm, serving one job, and leaving.
"""

import dataclasses
import enum
import signal
from collections.abc import Iterable, Sequence

from fdt.pool.state import events
from fdt.pool.state.events import OWN_HOST


class JobState(enum.StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # Its pool ended before it.
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self not in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


class WorkerState(enum.Enum):
    """Where a worker process is in its life."""

    STARTING = enum.auto()
    WARM = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine of the pool; `slots` is how many workers may serve jobs there at once, `placed` whether a scheduler gave it."""

    name: str
    label: str
    slots: int
    placed: bool = False


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
    session: bytes = b""
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
    failures: dict[str, events.WorkerFailed] = dataclasses.field(default_factory=dict)
    told: tuple[int, str] = (0, "")
    # Of the script, once its client closes the job.
    exit_status: int | None = None
    # With how few workers it may go on, and how many its client was asked to do without.
    least_workers: int = 0
    wanted: int = 0


# The exit status of a script that Ctrl-C ended, as shells show it.
_SCRIPT_INTERRUPTED = 128 + signal.SIGINT

_CAUSES = {
    signal.SIGKILL: "Somebody killed it, or the system did for want of memory",
    signal.SIGABRT: "A library stopped it",
    signal.SIGSEGV: "A library crashed",
    signal.SIGBUS: "The disk or /dev/shm is full, or a library crashed",
    signal.SIGILL: "A library uses instructions that this machine's processor does not have",
}
_OUT_OF_MEMORY = "The system killed it for want of memory: smaller batches or fewer workers on this machine need less"


def cause_of(event: events.WorkerExited) -> str:
    """Returns why a process ended, as a sentence with a space before it; "" where its status tells nothing."""
    if event.status == -signal.SIGKILL and event.out_of_memory:
        return f" {_OUT_OF_MEMORY}."
    cause = next((words for number, words in _CAUSES.items() if event.status == -number), "")
    return f" {cause}." if cause else ""


def describe_status(status: int) -> str:
    """Returns what an exit status of `subprocess` means, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def describe_end(who: str, event: events.WorkerExited) -> str:
    """Returns how a worker ended, and why, in words; the end of its log comes last."""
    if event.over:
        return f"{who} {event.over}. It was ended{event.known}; smaller batches, or a larger bound, let it live."
    log = f" The end of its log: {event.detail}" if event.detail else ""
    return f"{who} ended with {describe_status(event.status)}{event.known}.{cause_of(event)}{log}"


def ending(exit_status: int) -> tuple[JobState, str]:
    """Returns what became of a job that its client closed, and why."""
    if exit_status == _SCRIPT_INTERRUPTED:
        return JobState.CANCELLED, "the script was interrupted (KeyboardInterrupt)"
    return JobState.FINISHED, f"the script ended with status {exit_status}" if exit_status else ""


def describe_absence(job: str, ranks: Sequence[int], places: Iterable[str], limit_s: float) -> str:
    """Returns what to say of ranks that did not join the others in time.

    Args:
        job: Its name.
        ranks: Which.
        places: " on host NAME" of each; "" for the pool's own machine.
        limit_s: The time.
    """
    message = f"Rank(s) {ranks} of job {job} did not join the others within {limit_s:.0f} s."
    elsewhere = ",".join(sorted({*places} - {""}))
    return f"{message} They are{elsewhere}: is its --trusted-network the one of the pool?" if elsewhere else message


def describe_starts(mode: str, number: int, what: str, detail: str) -> str:
    """Returns what to say of workers that end before they serve a job, to be put behind who starts them.

    Args:
        mode: Theirs.
        number: Of those in a row.
        what: Became of the last, as in "ended with exit status 1, before it was ready".
        detail: How its log ends.
    """
    log = f" The end of its log: {detail}" if detail else ""
    return f"cannot start workers of mode {mode}: {number} in a row did not get to serve a job. The last {what}.{log}"
