"""Events that a pool's state is told of, and the instructions that it answers with."""

import dataclasses

from fdt.errors import FailedStep

# The pool's own machine, among its hosts.
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
    # Whether it has a process on the pool's own machine even if none of its workers is there.
    needs_pool: bool = False
    # Of a client: what is kept for one of its jobs is there for the next.
    session: bytes = b""
    # With how few workers it may go on; 0 for no fewer.
    least_workers: int = 0


@dataclasses.dataclass(frozen=True)
class HostJoined(Event):
    """A host has become part of the pool.

    Attributes:
        host: A name that never comes again.
        label: What a person calls it.
        slots: Workers that it offers.
        placed: Whether the pool's scheduler has brought it.
    """

    host: str
    label: str
    slots: int
    placed: bool = False


@dataclasses.dataclass(frozen=True)
class HostsWait(Event):
    """What the scheduler says of hosts that it was asked for and that have not joined; "" if there is nothing to say."""

    reason: str


@dataclasses.dataclass(frozen=True)
class HostsRefused(Event):
    """The scheduler gives no more hosts."""

    reason: str


@dataclasses.dataclass(frozen=True)
class HostGone(Event):
    """A host has left, was lost or has fallen silent. `reason` goes on from "Host NAME ...". `spare`: nobody needs it."""

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
    """A worker says that it failed. `time_s` is the worker's own, of the failure."""

    worker: str
    error: str
    message: str
    noticed_s: float
    step: FailedStep | None = None


@dataclasses.dataclass(frozen=True)
class WorkerExited(Event):
    """A process has ended.

    Attributes:
        worker: Whose.
        status: Negative for a signal.
        detail: How its log ends, if that tells anything.
        known: What is known of its last moment, to be put behind "it ended with".
        out_of_memory: Whether the system has killed processes for want of memory.
        over: What the worker took beyond its bounds, for which it was ended; "" for nothing. See `fdt.base.worker_bounds`.
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
    """None of a job's workers has done anything for so long, in the first step of a program."""

    job: str
    idle_s: float


@dataclasses.dataclass(frozen=True)
class WorkerClosed(Event):
    """A worker has handed in its last account of the job."""

    worker: str


@dataclasses.dataclass(frozen=True)
class JobRefused(Event):
    """The pool itself ends the job: its program is refused, a message makes no sense, its ports cannot be opened."""

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
    """The client needs the job no more: its script has come to its end, with this status."""

    job: str
    exit_status: int


@dataclasses.dataclass(frozen=True)
class Leaving(Event):
    """The pool is to go down: no new jobs, and so long for those that run to be put away."""

    grace_s: float


@dataclasses.dataclass(frozen=True)
class Tick(Event):
    """Time has passed."""


# ---- instructions ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Something to do."""


@dataclasses.dataclass(frozen=True)
class StartWorker(Instruction):
    worker: str
    mode: str
    host: str = OWN_HOST


@dataclasses.dataclass(frozen=True)
class EndWorker(Instruction):
    """Let the process end by itself, and see that it does."""

    worker: str


@dataclasses.dataclass(frozen=True)
class KillWorker(Instruction):
    worker: str


@dataclasses.dataclass(frozen=True)
class Assign(Instruction):
    """Gives a job its workers; the place in `workers` is the rank."""

    job: str
    workers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class WelcomeHost(Instruction):
    """Tell a host that it is part of the pool now."""

    host: str


@dataclasses.dataclass(frozen=True)
class DropHost(Instruction):
    """Forget a host and its workers; tell it why, if it still listens. `spare`: nothing was wrong with it."""

    host: str
    reason: str
    spare: bool = False


@dataclasses.dataclass(frozen=True)
class HostWorks(Instruction):
    """Note that a host which a scheduler brought can serve jobs.

    It has had a ready worker of every mode, and one of its workers has served a job, or has waited for one long enough.
    """

    host: str


@dataclasses.dataclass(frozen=True)
class WantHosts(Instruction):
    """Have the scheduler bring so many hosts in all, with those that have joined."""

    number: int


@dataclasses.dataclass(frozen=True)
class Say(Instruction):
    """Tells whoever runs the pool."""

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
    """Asks a job's client to go on with so many workers fewer, for which others wait."""

    job: str
    workers: int


@dataclasses.dataclass(frozen=True)
class TellLeaving(Instruction):
    """Tells a job's client that the pool goes down, and when."""

    job: str
    grace_s: float


@dataclasses.dataclass(frozen=True)
class Stop(Instruction):
    """The pool has no more jobs, and will have none."""


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
    """The job is over: end its stream, free what it held."""

    job: str


@dataclasses.dataclass(frozen=True)
class LetGo(Instruction):
    """Nobody will ask any more for what was kept for a session."""

    session: bytes


# What a pool's log tells at level "info"; the rest comes at level "debug".
NOTABLE = frozenset((
    Submitted, HostJoined, HostGone, HostsRefused, WorkerFailed, WorkerExited, WorkerSilent, JobRefused, ClientGone, Cancelled,
    Closing, Leaving, TellStarted, TellFailed, EndJob,
))  # fmt: skip
