"""Defines the events that a pool's state handles, and the instructions that it returns."""

import dataclasses

from fdt.errors import FailedStep

# The host name of the pool's own machine.
OWN_HOST = ""

# ---- events ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened, and when (seconds since the epoch)."""

    time_s: float


@dataclasses.dataclass(frozen=True)
class Submitted(Event):
    job: str
    mode: str
    num_workers: int
    script: str = ""
    # Whether the job has a process on the pool's own machine even if none of its workers is there.
    needs_pool: bool = False
    # The client's session: snapshots kept for one of its jobs are available to the next.
    session: bytes = b""
    # The fewest workers with which the job can run; 0 for `num_workers`.
    least_workers: int = 0
    # The person who submitted it; "" for the operator.
    owner: str = ""


@dataclasses.dataclass(frozen=True)
class HostJoined(Event):
    """A host has become part of the pool.

    Attributes:
        host: Its name in the pool, which is never reused.
        label: Its name in messages to people.
        slots: Workers that it offers.
        placed: Whether the pool's scheduler provided it.
    """

    host: str
    label: str
    slots: int
    placed: bool = False


@dataclasses.dataclass(frozen=True)
class HostsWait(Event):
    """The scheduler's reason why requested hosts have not joined; "" for none."""

    reason: str


@dataclasses.dataclass(frozen=True)
class HostsRefused(Event):
    """The scheduler provides no more hosts."""

    reason: str


@dataclasses.dataclass(frozen=True)
class HostGone(Event):
    """A host has left, was lost or has fallen silent. `reason` follows "Host NAME" in messages. `spare`: no job needs it."""

    host: str
    reason: str
    spare: bool = False


@dataclasses.dataclass(frozen=True)
class WorkerReady(Event):
    worker: str


@dataclasses.dataclass(frozen=True)
class WorkerJoined(Event):
    worker: str


@dataclasses.dataclass(frozen=True)
class WorkerFailed(Event):
    """A worker reports that it failed. `time_s` is the time of the failure, by the worker's clock."""

    worker: str
    error: str
    message: str
    noticed_s: float
    step: FailedStep | None = None


@dataclasses.dataclass(frozen=True)
class WorkerExited(Event):
    """A process has ended.

    Attributes:
        worker: The process's worker.
        status: Its exit status; negative for a signal.
        detail: The end of its log; "" if that is not helpful.
        known: Its last known number of steps and memory, in words that follow the exit status in messages.
        out_of_memory: Whether the system has killed processes because memory ran out.
        over: The bound of `fdt.base.worker_bounds` that it exceeded and was ended for, in words; "" for none.
    """

    worker: str
    status: int
    detail: str = ""
    known: str = ""
    out_of_memory: bool = False
    over: str = ""


@dataclasses.dataclass(frozen=True)
class WorkerSilent(Event):
    worker: str
    silent_s: float


@dataclasses.dataclass(frozen=True)
class JobIdle(Event):
    """All of a job's workers have been idle for `idle_s`, in the first step of a program."""

    job: str
    idle_s: float


@dataclasses.dataclass(frozen=True)
class WorkerClosed(Event):
    """A worker has sent its last account of the job."""

    worker: str


@dataclasses.dataclass(frozen=True)
class JobRefused(Event):
    """The pool itself ends the job: its program is refused, a message is invalid, or its ports cannot be opened."""

    job: str
    error: str
    message: str


@dataclasses.dataclass(frozen=True)
class ClientGone(Event):
    job: str


@dataclasses.dataclass(frozen=True)
class Cancelled(Event):
    job: str


@dataclasses.dataclass(frozen=True)
class Closing(Event):
    """The client closes the job: its script has ended, with this status."""

    job: str
    exit_status: int


@dataclasses.dataclass(frozen=True)
class Leaving(Event):
    """The pool is to go down: it takes no new jobs, and running jobs have `grace_s` to take a snapshot."""

    grace_s: float


@dataclasses.dataclass(frozen=True)
class Tick(Event):
    """Time has passed."""


# ---- instructions ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Something for the supervisor to do."""


@dataclasses.dataclass(frozen=True)
class StartWorker(Instruction):
    worker: str
    mode: str
    host: str = OWN_HOST


@dataclasses.dataclass(frozen=True)
class EndWorker(Instruction):
    """Lets a process end by itself, and ends it if it does not."""

    worker: str


@dataclasses.dataclass(frozen=True)
class KillWorker(Instruction):
    worker: str


@dataclasses.dataclass(frozen=True)
class Assign(Instruction):
    """Gives a job its workers; a worker's index in `workers` is its rank."""

    job: str
    workers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class WelcomeHost(Instruction):
    """Tells a host that it is part of the pool now."""

    host: str


@dataclasses.dataclass(frozen=True)
class DropHost(Instruction):
    """Deletes a host and its workers, and tells the host why if it is still connected. `spare`: the host had no fault."""

    host: str
    reason: str
    spare: bool = False


@dataclasses.dataclass(frozen=True)
class HostWorks(Instruction):
    """Tells the reconciler that a host from the scheduler can serve jobs.

    Since its last failure the host has had a ready worker of every mode, and a worker that has joined a job or has waited for
    one long enough.
    """

    host: str


@dataclasses.dataclass(frozen=True)
class WantHosts(Instruction):
    """Sets the number of hosts requested from the scheduler, joined ones included."""

    number: int


@dataclasses.dataclass(frozen=True)
class Say(Instruction):
    """Shows a line to the pool's operator."""

    line: str


@dataclasses.dataclass(frozen=True)
class TellQueued(Instruction):
    job: str
    position: int
    reason: str


@dataclasses.dataclass(frozen=True)
class TellStarted(Instruction):
    job: str


@dataclasses.dataclass(frozen=True)
class TellWanted(Instruction):
    """Asks a job's client to continue with `workers` fewer workers, since another job waits for them."""

    job: str
    workers: int


@dataclasses.dataclass(frozen=True)
class TellLeaving(Instruction):
    """Tells a job's client that the pool goes down, and when."""

    job: str
    grace_s: float


@dataclasses.dataclass(frozen=True)
class Stop(Instruction):
    """Ends the pool, which has no jobs left and accepts no more."""


@dataclasses.dataclass(frozen=True)
class TellFailed(Instruction):
    job: str
    error: str
    message: str
    rank: int
    time_s: float
    step: FailedStep | None = None


@dataclasses.dataclass(frozen=True)
class EndJob(Instruction):
    """Ends a job's stream, and frees what the job held."""

    job: str


@dataclasses.dataclass(frozen=True)
class LetGo(Instruction):
    """Deletes the snapshots that were kept for a session."""

    session: bytes


# Events and instructions that a pool logs at level "info"; it logs the others at level "debug".
NOTABLE = frozenset((
    Submitted, HostJoined, HostGone, HostsRefused, WorkerFailed, WorkerExited, WorkerSilent, JobRefused, ClientGone, Cancelled,
    Closing, Leaving, TellStarted, TellFailed, EndJob,
))  # fmt: skip
