"""Defines a pool's jobs, workers and hosts, their states, and the messages about their ends.

A job is queued, starting (its workers connect to each other), running, and then finished, failed, cancelled or interrupted. A
worker is starting (it imports its runtime), warm, serving one job, and leaving.
"""

import dataclasses
import enum
import signal
from collections.abc import Iterable, Sequence

from fdt.pool.state import events
from fdt.pool.state.events import OWN_HOST


class JobState(enum.StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # The pool ended before the job did.
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self not in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


class WorkerState(enum.Enum):
    """The state of a worker process."""

    STARTING = enum.auto()
    WARM = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine of the pool, on which `slots` workers may serve jobs at once; `placed`: whether a scheduler provided it."""

    name: str
    label: str
    slots: int
    placed: bool = False


@dataclasses.dataclass
class Worker:
    """A worker process; `since_s` is when it began to start, wait or leave, in seconds since the epoch."""

    name: str
    mode: str
    since_s: float
    host: str = OWN_HOST
    state: WorkerState = WorkerState.STARTING
    job: str | None = None
    rank: int = -1


@dataclasses.dataclass
class Job:
    """A job, from its submission until the pool forgets it."""

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
    # Hosts, and how many workers of the job each has.
    places: tuple[tuple[str, int], ...] = ()
    # Its processes, by rank.
    workers: tuple[str, ...] = ()
    joined: set[str] = dataclasses.field(default_factory=set)
    closed: set[str] = dataclasses.field(default_factory=set)
    # The workers' reports of their failures. The first to report need not be the first to have failed.
    failures: dict[str, events.WorkerFailed] = dataclasses.field(default_factory=dict)
    # The position in the queue that its client was last told, and the reason.
    told: tuple[int, str] = (0, "")
    # The script's exit status, once the client closes the job.
    exit_status: int | None = None
    # The fewest workers with which the job can run, and how many workers its client was asked to give back.
    least_workers: int = 0
    wanted: int = 0
    # The person who submitted it; "" for the operator.
    owner: str = ""


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
    """Returns why a process ended, as a space and a sentence; "" if the exit status does not show the cause."""
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
    """Returns how and why a worker ended, in words; the end of its log comes last."""
    if event.over:
        return f"{who} {event.over}. It was ended{event.known}; smaller batches, or a larger bound, prevent that."
    log = f" The end of its log: {event.detail}" if event.detail else ""
    return f"{who} ended with {describe_status(event.status)}{event.known}.{cause_of(event)}{log}"


def ending(exit_status: int) -> tuple[JobState, str]:
    """Returns the final state of a job that its client closed, and the reason."""
    if exit_status == _SCRIPT_INTERRUPTED:
        return JobState.CANCELLED, "the script was interrupted (KeyboardInterrupt)"
    return JobState.FINISHED, f"the script ended with status {exit_status}" if exit_status else ""


def describe_absence(job: str, ranks: Sequence[int], places: Iterable[str], limit_s: float) -> str:
    """Returns the message about ranks that did not join the others in time.

    Args:
        job: Its name.
        ranks: The missing ranks.
        places: " on host NAME" for each of them; "" for the pool's own machine.
        limit_s: The time limit.
    """
    message = f"Rank(s) {ranks} of job {job} did not join the others within {limit_s:.0f} s."
    elsewhere = ",".join(sorted({*places} - {""}))
    return f"{message} They are{elsewhere}: is its --trusted-network the one of the pool?" if elsewhere else message


def describe_starts(mode: str, number: int, what: str, detail: str) -> str:
    """Returns the message about workers that end before they serve a job, without its subject ("The pool", "Host NAME").

    Args:
        mode: The workers' mode.
        number: How many failed in a row.
        what: How the last one ended, as in "ended with exit status 1, before it was ready".
        detail: The end of its log.
    """
    log = f" The end of its log: {detail}" if detail else ""
    return f"cannot start workers of mode {mode}: {number} in a row did not get to serve a job. The last {what}.{log}"
