"""The seam: what a runtime must offer.

A runtime is two things, one for each side of the process boundary:

- a `Launcher`, in the pool's control process (no TensorFlow there, and no port): how a job becomes processes;
- an `Engine`, in each process of the job: what a worker does with a program.

The pool finds launchers by the entry-point group `fdt.launchers` (`sync` -> hfdt, `async` -> nfdt), so that `fdt`
imports neither.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Protocol

from fdt.errors import UsageError
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import Buffer
from fdt.v1 import job_pb2, program_pb2


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What a worker process is told when a job gets it.

    Attributes:
        job: Name of the job.
        rank: Index in [0, num_workers).
        num_workers: Workers of the job.
        num_threads: Threads that one operation may use (TensorFlow's intra-op pool).
        environment: What the launcher tells this process.
        options: Options of the runtime, by their command-line names.
    """

    job: str
    rank: int
    num_workers: int
    num_threads: int
    environment: Mapping[str, str]
    options: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a worker is.

    Attributes:
        host: Name of its host; "" for the pool's own machine.
        address: Of the host on the pool's trusted network; loopback for a pool that takes no hosts.
        interface: The network interface with this address, such as "eth1".
    """

    host: str = ""
    address: str = "127.0.0.1"
    interface: str = "lo"


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the workers of a job are.

    Attributes:
        workers: One place a worker, by rank; the workers of one host are neighbours.
        pool: Where the pool's control process is.
        pool_takes_part: Whether the job has a process there even if none of its workers is.
        tunnelled: Whether each process has a network of its own, in which it reaches the others at `inner_address`.
    """

    workers: tuple[Place, ...]
    pool: Place = Place()
    pool_takes_part: bool = False
    tunnelled: bool = False

    @classmethod
    def own(cls, num_workers: int) -> "Placement":
        """So many workers on the pool's own machine."""
        return cls((Place(),) * num_workers)

    @property
    def processes(self) -> tuple[tuple[Place, int], ...]:
        """The places of the job, each once, in the order of the ranks, and how many workers are there."""
        places = (*((self.pool,) if self.pool_takes_part else ()), *self.workers)
        return tuple((place, self.workers.count(place)) for place in dict.fromkeys(places))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, each once, in the order of the ranks."""
        return tuple(place.host for place, _ in self.processes)

    @property
    def is_own(self) -> bool:
        """Whether all workers are on the pool's own machine, so that loopback is enough."""
        return set(self.hosts) <= {self.pool.host}


# In every network that is joined by tunnels, the process with rank k has 127.0.1.(k+1) to itself, and a port there.
_INNER_NETWORK, _INNER_PORT = "127.0.1", 7100


def inner_address(rank: int) -> tuple[str, int]:
    """Returns where the process with a rank listens, and where the others reach it, in the networks of a tunnelled job."""
    return f"{_INNER_NETWORK}.{rank + 1}", _INNER_PORT + rank


class Launcher(Protocol):
    """How a job of this runtime becomes processes."""

    # Where the worker process finds its engine: "module:Class".
    engine: str
    # Whether the processes of a job, one a host, reach each other through tunnels, so that each may have a network of its own.
    tunnels: bool

    def check(self, options: Mapping[str, str]) -> None:
        """Looks at a job's options before anything is started.

        Raises:
            UsageError: One is unknown, out of range, or does not go with the others.
        """

    def num_processes(self, num_workers: int) -> int:
        """Returns how many processes so many workers of a job take on one host."""

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Returns whether a job has a process on the pool's own machine even if none of its workers is there."""

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        """Returns what one process of a job with its workers there is told."""


def find_launchers(modes: tuple[str, ...]) -> dict[str, Launcher]:
    """Returns the launchers of these modes, from the entry points of the group `fdt.launchers`.

    Raises:
        UsageError: No runtime offers a mode.
    """
    found = {point.name: point for point in metadata.entry_points(group="fdt.launchers")}
    missing = [mode for mode in modes if mode not in found]
    if missing:
        raise UsageError(
            f"No runtime is installed for --mode {missing[0]}; there is: {', '.join(sorted(found)) or '-'}. Install this "
            "package again: `pip install .` also registers its runtimes."
        )
    return {mode: found[mode].load()() for mode in modes}


class Rendezvous(Protocol):
    """Where the processes of one job, and nobody else, tell each other how they are reached."""

    def put(self, key: str, value: bytes) -> None:
        """Sets a value for all processes of the job."""

    def get(self, key: str) -> bytes | None:
        """Returns a value; None while nobody has set it."""

    def wait(self, key: str, limit_s: float) -> bytes:
        """Returns a value once somebody has set it.

        Raises:
            WorkerError: Nobody did within the limit.
        """


# Takes the place of a step among those that were given together, and its outputs, packed; called from any thread.
Deliver = Callable[[int, bytes], None]


class Engine(Protocol):
    """One worker's side of a job. Every method but the constructor is called from one thread, in instruction order.

    The constructor runs while the process is being warmed: it imports what is slow and touches no device.
    """

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        """Meets the other workers of the job."""

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Makes a program ready to run."""

    def forget(self, program: int) -> None:
        """Frees a program, once all steps before have run: it is not asked for again."""

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """Maps arrays of the store into memory; passing ones serve the next steps and are then released."""

    def release(self, data: int) -> None:
        """Lets arrays go as soon as the steps that were given have run; their files may go at once."""

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Sets variables."""

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Sets variables to what those of another program have, once all steps before have run.

        Args:
            program: Whose variables are set.
            variables: Their indices.
            source: The other program.
            source_variables: As many indices of its variables.
        """

    def run(self, program: int, data: int, batches: Sequence[Buffer], deliver: Deliver | None) -> None:
        """Runs one step for each batch (int64 row indices of the script's whole batch), or sees to it that it will be.

        Args:
            program: Its number.
            data: Number of the arrays.
            batches: The rows of each; large ones are maps of files, which stay as long as somebody refers to them.
            deliver: Called with the outputs of each step, where they are wanted.
        """

    def steps(self) -> int:
        """Returns how many steps have been finished. Raises the error of a step that failed."""

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """Returns state; `serial`, `steps` and `workers` are filled in by the caller.

        Args:
            program: Its number.
            what: Which part of it.
            variables: With WHAT_ALL, indices of those that are wanted, without outputs; none: all.
        """

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns what the workers of this process did so far.

        `peak_memory_bytes` is filled in by the caller, and `wait_s` where there is one worker that only waits for the caller.
        """
