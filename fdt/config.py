"""Configuration: built once at the edge (flag > environment > default), frozen, passed down."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from fdt.pool.limits import DEFAULT, Limits


@dataclasses.dataclass(frozen=True)
class Timing:
    """Every wait and interval of the project, in seconds. Tests pass small numbers."""

    connect_s: float = 10.0
    call_s: float = 20.0
    # A transfer may take long in all; between two chunks it may not.
    chunk_s: float = 30.0
    # From the start of a worker process to its `ready` (it imports TensorFlow on a busy machine).
    warm_s: float = 180.0
    # From an assignment to `joined`.
    join_s: float = 60.0
    heartbeat_s: float = 1.0
    # A worker that has not been heard of for so long has stopped.
    heartbeat_limit_s: float = 10.0
    # Workers whose steps have ended before have stopped if none ends for so long (more where steps are slow: `fdt.pool.stall`).
    stall_s: float = 180.0
    # From a worker's error to the job's: others may have failed earlier and be about to say so.
    settle_s: float = 0.3
    # How long a process is given to end by itself before it is killed.
    stop_s: float = 3.0
    # The most steps, in seconds of work, that a client may be ahead of the workers.
    run_ahead_s: float = 0.5


@dataclasses.dataclass(frozen=True)
class Credentials:
    """How a client proves itself to a pool.

    Attributes:
        token: Shared secret, sent with every call; None for none.
        tls_ca: PEM file with the authority that signed the pool's certificate; None for a plain connection.
    """

    token: str | None = None
    tls_ca: Path | None = None


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that the operator trusts, as one host is connected to it.

    Attributes:
        interface: Name of the host's network interface, such as "eth1".
        address: IPv4 address of the host there.
        cidr: The addresses of the network, such as "10.0.0.0/24".
    """

    interface: str
    address: str
    cidr: str


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """`fdt run`, and `fdt verify`."""

    script: str
    arguments: tuple[str, ...] = ()
    # Whether `script` is the name of a module.
    is_module: bool = False
    mode: str = "sync"
    num_workers: int = 2
    server: str | None = None
    batch: str = "global"
    scale_lr: str = "none"
    report: Path | None = None
    # Directory for TensorBoard's files about the processes.
    tensorboard: Path | None = None
    # What `fdt predict --json` wrote; the report compares.
    prediction: Path | None = None
    credentials: Credentials = Credentials()
    # Of the runtime, by their command-line names without dashes in front.
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # `fdt verify`: how many steps are made twice, and what difference is rounding.
    verify_steps: int = 0
    # `fdt check`: nothing is trained.
    only_looks: bool = False
    tolerance: float = 1e-4
    # Eager steps that cannot be outlined run on the script's machine, instead of being refused.
    else_local: bool = False
    # The script ends after so many training steps (0: when it does itself); the report leaves the first ones out.
    stop_after: int = 0
    warm_up: int = 0
    timing: Timing = Timing()


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """`fdt serve`, and the pool embedded in a run."""

    listen: str = "127.0.0.1:7077"
    modes: tuple[str, ...] = ("sync",)
    num_workers: int = 2
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    # Threads that one operation of a worker may use; None for its share of the machine's.
    num_threads: int | None = None
    # Bytes of arrays and programs that the store may hold; None for what the disk gives.
    store_limit_bytes: int | None = None
    # Jobs that will run at once, at most; None for as many as there are workers.
    max_jobs: int | None = None
    # "host:port" on loopback where Prometheus may ask for figures; None for nowhere.
    metrics: str | None = None
    # Over which workers on other hosts are reached; None for a pool that takes no hosts.
    network: Network | None = None
    # Asynchronous workers of several hosts open servers on the machines' own network, for anybody who reaches it.
    open_servers: bool = False
    # Whether workers are walled in; see `fdt.pool.walls`.
    walls: bool = True
    timing: Timing = Timing()
    limits: Limits = DEFAULT


@dataclasses.dataclass(frozen=True)
class JoinConfig:
    """`fdt serve --join`: this machine as a host of a pool elsewhere.

    Attributes:
        pool: "host:port" of the pool.
        num_workers: Workers that this host offers.
        network: Over which its workers meet the others.
        name: What a person calls this host.
        open_servers: See `ServeConfig`.
        credentials: Token and certificate authority of the pool.
        walls: Whether workers are walled in; see `fdt.pool.walls`.
        timing: Until the pool has told its own.
    """

    pool: str
    num_workers: int
    network: Network
    name: str
    open_servers: bool = False
    credentials: Credentials = Credentials()
    walls: bool = True
    timing: Timing = Timing()
