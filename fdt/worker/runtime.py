"""Defines the interface that a runtime implements.

A runtime has two parts, one for each side of the process boundary:

- a `Launcher`, in the pool's control process, where it must not import TensorFlow or open a port: plans the processes of a job;
- an `Engine`, in each process of the job: executes programs.

The pool finds launchers by the entry-point group `fdt.launchers` (`sync` -> hfdt, `async` -> nfdt), so that `fdt`
imports neither.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from fdt.errors import UsageError
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import Buffer
from fdt.v1 import job_pb2, program_pb2

if TYPE_CHECKING:
    # The control process does not import TensorFlow.
    from fdt.program.row_reader import RowReader


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The pool's message that assigns a worker process to a job.

    Attributes:
        job: Name of the job.
        rank: Index in [0, num_workers).
        num_workers: Workers of the job.
        num_threads: Threads that one operation may use (TensorFlow's intra-op pool).
        environment: The launcher's settings for this process.
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
    """A worker's location.

    Attributes:
        host: Name of its host; "" for the pool's own machine.
        address: The host's address on the pool's trusted network; loopback for a pool that takes no hosts.
        interface: The network interface with this address, such as "eth1".
    """

    host: str = ""
    address: str = "127.0.0.1"
    interface: str = "lo"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The locations of a job's workers.

    Attributes:
        workers: The place of each worker, by rank; the workers of one host are neighbours.
        pool: The place of the pool's control process.
        pool_takes_part: Whether the job has a process on the pool's machine, even without a worker there.
        tunnelled: Whether each process has a network of its own and reaches the others at their `inner_address`.
    """

    workers: tuple[Place, ...]
    pool: Place = Place()
    pool_takes_part: bool = False
    tunnelled: bool = False

    @property
    def processes(self) -> tuple[tuple[Place, int], ...]:
        """The places of the job's processes, in the order of the ranks, each once and with its number of workers."""
        places = (*((self.pool,) if self.pool_takes_part else ()), *self.workers)
        return tuple((place, self.workers.count(place)) for place in dict.fromkeys(places))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, each once, in the order of the ranks."""
        return tuple(place.host for place, _ in self.processes)


# In every network connected by tunnels, the process with rank k has the address 127.0.1.(k+1) and a port to itself.
_INNER_NETWORK, _INNER_PORT = "127.0.1", 7100


def inner_address(rank: int) -> tuple[str, int]:
    """Returns the address of a rank's process in the networks of a tunnelled job."""
    return f"{_INNER_NETWORK}.{rank + 1}", _INNER_PORT + rank


class Launcher(Protocol):
    """Plans the processes of a runtime's jobs."""

    # The engine's class, which worker processes import: "module:Class".
    engine: str
    # Whether a job has one process for each host, and these can connect through tunnels from networks of their own.
    tunnels: bool

    def check(self, options: Mapping[str, str]) -> None:
        """Checks a job's options before anything is started.

        Raises:
            UsageError: An option is unknown, out of range, or incompatible with the others.
        """

    def num_processes(self, num_workers: int) -> int:
        """Returns how many processes `num_workers` workers of a job take on one host."""

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Returns whether a job with these options needs a process on the pool's machine, even without a worker there."""

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        """Returns the settings for one process of a job with this placement."""


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
    """A key-value store of one job, in which only its processes exchange addresses and other small values."""

    def put(self, key: str, value: bytes) -> None:
        """Sets a value for all processes of the job."""

    def get(self, key: str) -> bytes | None:
        """Returns a value; None if it is not set yet."""

    def wait(self, key: str, limit_s: float) -> bytes:
        """Waits until a value is set, and returns it.

        Raises:
            WorkerError: It was not set within the limit.
        """

    def memory(self, key: str, num_bytes: int) -> int | None:
        """Returns a descriptor of memory that the processes of the job on this machine share.

        Args:
            key: Known to the job's processes only; those that name the same get the same memory.
            num_bytes: Its size; all of them name the same.

        Returns:
            None if there is no such memory. It begins with `fdt.worker.shared_memory.ID_BYTES` that tell it from others.
        """


# The number of the data set that holds a step's batch, and the batch's rows there: int64, of the script's whole batch.
Batch = tuple[int, Buffer]
# Takes a step's index among the steps of one `run`, and its packed outputs; called from any thread.
Deliver = Callable[[int, bytes], None]


class Engine(Protocol):
    """Executes one worker's part of a job. One thread calls all methods except the constructor, in instruction order.

    The constructor runs before the process has a job: it does the slow imports and touches no device.
    """

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        """Connects to the other workers of the job."""

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Makes a program ready to run."""

    def forget(self, program: int) -> None:
        """Frees a program once all earlier steps have run; it is not used again."""

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """Maps arrays of the store into memory; with `passing`, they are released once the next steps have run."""

    def bind_rows(self, data: int, rows: "RowReader") -> None:
        """Takes a data set whose rows are read and computed as steps need them."""

    def expect(self, program: int, batches: Sequence[Batch]) -> None:
        """Is told of batches that `run` is given next, in this order, so that rows can be read ahead.

        Args:
            program: See `run`.
            batches: See `run`.
        """

    def release(self, data: int) -> None:
        """Frees arrays as soon as the given steps have run; their files may be deleted at once."""

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Sets variables."""

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Sets variables to the values of another program's variables, once all earlier steps have run.

        Args:
            program: The program whose variables are set.
            variables: Their indices.
            source: The other program.
            source_variables: As many indices of the other program's variables.
        """

    def run(self, program: int, batches: Sequence[Batch], deliver: Deliver | None) -> None:
        """Runs, or schedules, one step for each batch.

        Args:
            program: Its number.
            batches: The batches. Large row numbers are memory-mapped files, which exist while they are referenced.
            deliver: Called with the outputs of each step; None if they are not wanted.
        """

    def steps(self) -> int:
        """Returns the number of finished steps. Raises the error of a step that failed."""

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """Returns state; `serial`, `steps` and `workers` are filled in by the caller.

        Args:
            program: Its number.
            what: The wanted part of the state.
            variables: With WHAT_ALL, indices of the wanted variables, without outputs; all variables and outputs if empty.
        """

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns the accounts of this process's workers so far.

        The caller fills in `peak_memory_bytes`, and `wait_s` if a single worker waits only for the caller.
        """
