"""What happens to jobs and workers, and what is to be done about it: the words in which `fdt.pool.state` is spoken to."""

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class HostJoined(Event):
    """A host has become part of the pool. `host` is a name that never comes again, `label` what a person calls it."""

    host: str
    label: str
    slots: int


@dataclasses.dataclass(frozen=True)
class HostGone(Event):
    """A host has left, was lost or has fallen silent. `reason` goes on from "Host NAME ..."."""

    host: str
    reason: str


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


@dataclasses.dataclass(frozen=True)
class WorkerExited(Event):
    """A process has ended. `status` is negative for a signal; `detail` may hold how its log ends."""

    worker: str
    status: int
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class WorkerSilent(Event):
    worker: str
    silent_s: float


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
    """Forget a host and its workers; tell it why, if it still listens."""

    host: str
    reason: str


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
class TellFailed(Instruction):
    job: str
    error: str
    message: str
    rank: int
    time_s: float


@dataclasses.dataclass(frozen=True)
class EndJob(Instruction):
    """The job is over: end its stream, free what it held."""

    job: str
