"""Configuration: built once at the edge (flag > environment > default), frozen, passed down."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdt.base.limits import DEFAULT, Limits
from fdt.base.worker_bounds import UNBOUNDED, Bounds

# The file, in the directory of a run's own pool, with the address on which the pool listens.
ADDRESS = "address"
# The folder, in a pool's or host's directory, that holds a folder for each worker.
WORKERS = "workers"
# Sets `--no-walls` for every pool of this machine, including a run's own pool.
NO_WALLS = "FDT_NO_WALLS"
# Values of an environment variable that switch an option off.
OFF = ("", "0", "false", "no", "off")


def walls_are_off() -> bool:
    """Whether the environment switches the sandbox of workers off."""
    return os.environ.get(NO_WALLS, "").lower() not in OFF


@dataclasses.dataclass(frozen=True)
class Timing:
    """Every wait and interval of the project, in seconds. Tests pass small numbers."""

    connect_s: float = 10.0
    call_s: float = 20.0
    # Between two chunks of a transfer, which may take longer in all.
    chunk_s: float = 30.0
    # From the start of a worker process to its `ready` (it imports TensorFlow on a busy machine).
    warm_s: float = 180.0
    # From an assignment to `joined`.
    join_s: float = 60.0
    heartbeat_s: float = 1.0
    # A worker without a heartbeat for this long has stopped.
    heartbeat_limit_s: float = 10.0
    # Workers that finish no step for this long (or longer: `stall_detector.py`) have stopped, once they have finished some.
    stall_s: float = 180.0
    # From a worker's error to the job's failure: another worker that failed earlier may report it in this time.
    settle_s: float = 0.3
    # How long a process may take to end before it is killed.
    stop_s: float = 3.0
    # The most steps, in seconds of work, that a client may be ahead of the workers.
    run_ahead_s: float = 0.5
    # Between two snapshots of a job, at least; after a fault this much work is repeated.
    snapshot_s: float = 3.0
    # How long a client tries to reconnect to a pool that it has lost.
    reconnect_s: float = 120.0
    # How long a pool keeps a lost job's snapshots, for the client to resume from.
    hold_s: float = 150.0
    # Between two queries of a scheduler about requested hosts: at first, and at most.
    look_s: float = 1.0
    look_limit_s: float = 15.0
    # How long a pool waits before it repeats a request that the scheduler has refused.
    ask_again_s: float = 60.0
    # How long a scheduler may take to end the jobs of a pool that shuts down.
    sweep_s: float = 40.0
    # How long a lost host may take to join again, if its scheduler restarts it.
    rejoin_s: float = 30.0


@dataclasses.dataclass(frozen=True)
class Credentials:
    """How a client authenticates itself to a pool.

    Attributes:
        token: Shared secret, sent with every call; None for none.
        tls_ca: PEM file of the authority that signed the pool's certificate; None for the authorities that the system trusts,
            and on loopback for a plain connection.
        is_found: Whether the token was found, not given: another pool of this user at the address may have another token.
    """

    token: str | None = None
    tls_ca: Path | None = None
    is_found: bool = False


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
class PlacingConfig:
    """The hosts of a pool that are requested from a cluster's scheduler.

    Attributes:
        scheduler: Its name, such as "slurm".
        least: The least number of hosts.
        most: The largest number of hosts.
        slots: Workers of each host.
        gpus: GPUs of each host.
        idle_s: How long a host may be without work before it is given back.
        arguments: Passed to the scheduler unchanged.
        folder: On a file system that all hosts share.
        tls_ca: PEM file with which hosts check the pool's certificate; None as for `Credentials`.
        open_servers: See `ServeConfig`.
        walls: Whether workers are sandboxed; see `fdt.worker.sandbox`.
        bounds: The bounds of each worker.
    """

    scheduler: str
    least: int
    most: int
    folder: Path
    slots: int = 1
    gpus: int = 0
    idle_s: float = 300.0
    arguments: tuple[str, ...] = ()
    tls_ca: Path | None = None
    open_servers: bool = False
    walls: bool = True
    bounds: Bounds = UNBOUNDED


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """`fdt run`, and `fdt verify`."""

    script: str
    arguments: tuple[str, ...] = ()
    # Whether `script` is the name of a module.
    is_module: bool = False
    mode: str = "sync"
    num_workers: int = 2
    # The least number of workers with which the run may begin and go on; 0 for all.
    least_workers: int = 0
    server: str | None = None
    batch: str = "global"
    scale_lr: str = "none"
    report: Path | None = None
    # Directory for TensorBoard's files about the processes.
    tensorboard: Path | None = None
    # A file of `fdt predict --json`, with which the report compares the run.
    prediction: Path | None = None
    credentials: Credentials = Credentials()
    # The scheduler's hosts for this run, and the network that connects them; None if all workers are on this machine.
    placing: PlacingConfig | None = None
    network: Network | None = None
    # Folders of data sets on this machine, and the names that they have where the pool's workers read them.
    mapped_folders: tuple[tuple[str, str], ...] = ()
    # The runtime's options, by their command-line names without the leading dashes.
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # `fdt verify`: how many steps are made twice, and (`tolerance`) which difference counts as rounding.
    verify_steps: int = 0
    # Keras computes in double precision.
    in_double: bool = False
    # `fdt check`: nothing is trained.
    only_looks: bool = False
    tolerance: float = 1e-4
    # Whether eager steps that cannot be outlined run on the script's machine, instead of being refused.
    else_local: bool = False
    # The script ends after so many training steps (0: when it does itself); the report leaves the first ones out.
    stop_after: int = 0
    warm_up: int = 0
    # Bounds of each worker of the run's own pool.
    bounds: Bounds = UNBOUNDED
    # Operations that such a pool admits besides those of `fdt.program.operations`.
    admitted: tuple[str, ...] = ()
    timing: Timing = Timing()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the workers may be on other machines, with other files."""
        return self.server is not None

    @property
    def pulls_parameters(self) -> bool:
        """Whether workers compute gradients from parameters that they pull from servers."""
        return self.mode == "async" and self.options.get("update") != "averaging"


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """`fdt serve`, and the pool embedded in a run."""

    listen: str = "127.0.0.1:7077"
    modes: tuple[str, ...] = ("sync",)
    num_workers: int = 2
    token: str | None = None
    # A file with tokens of persons, who may do what is theirs; None for none. See `fdt.pool.token_file`.
    tokens: Path | None = None
    # Whether persons see, use and cancel what belongs to others.
    share: bool = False
    # A file for what callers did and what was refused; None for no file. See `fdt.pool.audit`.
    audit_log: Path | None = None
    # The token with which hosts join, and which permits nothing else; None if they use the clients' token.
    join_token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    # Threads that one operation of a worker may use; None for its share of the machine's cores.
    num_threads: int | None = None
    # Bytes of arrays and programs that the store may hold; None for the limit of the disk.
    store_limit_bytes: int | None = None
    # The most jobs that run at once; None for the number of workers.
    max_jobs: int | None = None
    # "host:port" on loopback where Prometheus reads metrics; None for no such port.
    metrics: str | None = None
    # "host:port" on loopback of the pool's web page; None for no page.
    page: str | None = None
    # The network that connects workers on several hosts; None for a pool that accepts no hosts.
    network: Network | None = None
    # Hosts to request from a scheduler; None if people start hosts themselves.
    placing: PlacingConfig | None = None
    # Whether asynchronous workers on several hosts open unauthenticated servers on the machines' own network.
    open_servers: bool = False
    # Whether workers are sandboxed; see `fdt.worker.sandbox`.
    walls: bool = True
    # Folders of data sets, absolute: workers read files in them that the client has, too.
    data: tuple[Path, ...] = ()
    # Whether it is a run's own pool, on the machine of its one client and of the same user: workers read every file that the
    # client names and this user may read, and the client may connect to them.
    of_one_run: bool = False
    # How much of the machine each worker process may take.
    bounds: Bounds = UNBOUNDED
    # Operations that programs may hold besides those of `fdt.program.operations`.
    admitted: tuple[str, ...] = ()
    # A new file for the events and instructions of the pool's state; None for no file. See `fdt.pool.event_log`.
    record_events: Path | None = None
    # How long jobs may take to save snapshots when the pool is asked to shut down.
    grace_s: float = 30.0
    timing: Timing = Timing()
    limits: Limits = DEFAULT


@dataclasses.dataclass(frozen=True)
class JoinConfig:
    """`fdt serve --join`: this machine as a host of a pool elsewhere.

    Attributes:
        pool: "host:port" of the pool.
        num_workers: Workers that this host offers.
        network: The network that connects its workers to other hosts'.
        name: This host's name, for people.
        open_servers: See `ServeConfig`.
        credentials: Token and certificate authority of the pool.
        walls: Whether workers are sandboxed; see `fdt.worker.sandbox`.
        bounds: How much of this host each worker process may take.
        data: Folders of data sets that its workers read.
        timing: Used until the pool has sent its own.
    """

    pool: str
    num_workers: int
    network: Network
    name: str
    open_servers: bool = False
    credentials: Credentials = Credentials()
    walls: bool = True
    bounds: Bounds = UNBOUNDED
    data: tuple[Path, ...] = ()
    timing: Timing = Timing()


def serve_config_of(fields: Mapping[str, Any]) -> ServeConfig:
    """Restores a configuration from `dataclasses.asdict` and JSON, with paths as text."""
    fields = dict(fields)
    fields["timing"], fields["limits"] = Timing(**fields["timing"]), Limits(**fields["limits"])
    fields["modes"], fields["bounds"] = tuple(fields["modes"]), Bounds(**fields["bounds"])
    fields["admitted"], fields["data"] = tuple(fields["admitted"]), tuple(map(Path, fields["data"]))
    for name in ("tls_cert", "tls_key", "tokens", "audit_log"):
        fields[name] = _path(fields[name])
    if fields["network"] is not None:
        fields["network"] = Network(**fields["network"])
    if fields["placing"] is not None:
        placing = dict(fields["placing"])
        placing |= {
            "folder": Path(placing["folder"]),
            "tls_ca": _path(placing["tls_ca"]),
            "bounds": Bounds(**placing["bounds"]),
        }
        fields["placing"] = PlacingConfig(**{**placing, "arguments": tuple(placing["arguments"])})
    return ServeConfig(**fields)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
