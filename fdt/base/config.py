"""Configuration: built once at the edge (flag > environment > default), frozen, passed down."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdt.base.limits import DEFAULT, Limits
from fdt.base.worker_bounds import UNBOUNDED, Bounds

# In the directory of a run's own pool: where it listens, once it does.
ADDRESS = "address"
# `--no-walls` for every pool of this machine, also the one that lives for the length of a run.
NO_WALLS = "FDT_NO_WALLS"
# What switches an option off in the environment.
OFF = ("", "0", "false", "no", "off")


def walls_are_off() -> bool:
    """Whether the environment says that nothing is to keep a program inside its worker."""
    return os.environ.get(NO_WALLS, "").lower() not in OFF


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
    # Workers whose steps have ended before have stopped if none ends for so long (or longer: `stall_detector.py`).
    stall_s: float = 180.0
    # From a worker's error to the job's: others may have failed earlier and be about to say so.
    settle_s: float = 0.3
    # How long a process is given to end by itself before it is killed.
    stop_s: float = 3.0
    # The most steps, in seconds of work, that a client may be ahead of the workers.
    run_ahead_s: float = 0.5
    # Between two snapshots of a job, at least: so much work is done again after a fault.
    snapshot_s: float = 3.0
    # How long a client whose pool is gone tries to reach it again.
    reconnect_s: float = 120.0
    # How long a pool keeps the snapshots of a job that was lost for the client to begin again.
    hold_s: float = 150.0
    # Between two looks at what a scheduler does with hosts that were asked for: at first, and later.
    look_s: float = 1.0
    look_limit_s: float = 15.0
    # How long a pool waits until it asks again for hosts that the scheduler has refused.
    ask_again_s: float = 60.0
    # How long a scheduler has to end the jobs of a pool that ends.
    sweep_s: float = 40.0
    # How long a host that was lost may take to join again where its scheduler begins it again by itself.
    rejoin_s: float = 30.0


@dataclasses.dataclass(frozen=True)
class Credentials:
    """How a client proves itself to a pool.

    Attributes:
        token: Shared secret, sent with every call; None for none.
        tls_ca: PEM file with the authority that signed the pool's certificate; None for those that the system trusts, and on
            loopback for a plain connection.
        is_found: Whether the token was not given but found; another pool of this user's at the address may have another.
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
    """Hosts of a pool that a cluster's scheduler is asked for.

    Attributes:
        scheduler: Its name, such as "slurm".
        least: Hosts that are always there.
        most: Hosts at once.
        slots: Workers of each.
        gpus: GPUs of each.
        idle_s: How long a host may be without work before it is given back.
        arguments: Go to the scheduler as they are.
        folder: On a file system that all hosts share.
        tls_ca: With what hosts check the pool's certificate, PEM; None as for `Credentials`.
        open_servers: See `ServeConfig`.
        walls: Whether workers are walled in; see `fdt.worker.sandbox`.
        bounds: Of each worker.
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
    # With how few it may begin and go on; 0 for no fewer.
    least_workers: int = 0
    server: str | None = None
    batch: str = "global"
    scale_lr: str = "none"
    report: Path | None = None
    # Directory for TensorBoard's files about the processes.
    tensorboard: Path | None = None
    # What `fdt predict --json` wrote; the report compares.
    prediction: Path | None = None
    credentials: Credentials = Credentials()
    # Where hosts for this run are asked for, and the network over which they are reached; None: all workers are here.
    placing: PlacingConfig | None = None
    network: Network | None = None
    # Of the runtime, by their command-line names without dashes in front.
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # `fdt verify`: how many steps are made twice, and what difference is rounding.
    verify_steps: int = 0
    # Keras computes in double precision.
    in_double: bool = False
    # `fdt check`: nothing is trained.
    only_looks: bool = False
    tolerance: float = 1e-4
    # Eager steps that cannot be outlined run on the script's machine, instead of being refused.
    else_local: bool = False
    # The script ends after so many training steps (0: when it does itself); the report leaves the first ones out.
    stop_after: int = 0
    warm_up: int = 0
    # Of the workers of a pool that lives with the run.
    bounds: Bounds = UNBOUNDED
    # Operations that such a pool admits besides those of `fdt.program.operations`.
    admitted: tuple[str, ...] = ()
    timing: Timing = Timing()


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """`fdt serve`, and the pool embedded in a run."""

    listen: str = "127.0.0.1:7077"
    modes: tuple[str, ...] = ("sync",)
    num_workers: int = 2
    token: str | None = None
    # Opens the pool to hosts, and nothing else; None if the clients' token does.
    join_token: str | None = None
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
    # The same where browsers may see the pool's page.
    page: str | None = None
    # Over which workers on other hosts are reached; None for a pool that takes no hosts.
    network: Network | None = None
    # Hosts that a scheduler brings; None where people do.
    placing: PlacingConfig | None = None
    # Asynchronous workers of several hosts open servers on the machines' own network, for anybody who reaches it.
    open_servers: bool = False
    # Whether workers are walled in; see `fdt.worker.sandbox`.
    walls: bool = True
    # How much of the machine each worker process may take.
    bounds: Bounds = UNBOUNDED
    # Operations that programs may hold besides those of `fdt.program.operations`.
    admitted: tuple[str, ...] = ()
    # A new file for what the pool's state is told and answers; None for nowhere. See `fdt.pool.event_log`.
    record_events: Path | None = None
    # How long jobs have to be put away when the pool is asked to go down.
    grace_s: float = 30.0
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
        walls: Whether workers are walled in; see `fdt.worker.sandbox`.
        bounds: How much of this host each worker process may take.
        timing: Until the pool has told its own.
    """

    pool: str
    num_workers: int
    network: Network
    name: str
    open_servers: bool = False
    credentials: Credentials = Credentials()
    walls: bool = True
    bounds: Bounds = UNBOUNDED
    timing: Timing = Timing()


def serve_config_of(fields: Mapping[str, Any]) -> ServeConfig:
    """Returns a configuration that has been through `dataclasses.asdict` and JSON, with paths as text."""
    fields = dict(fields)
    fields["timing"], fields["limits"] = Timing(**fields["timing"]), Limits(**fields["limits"])
    fields["modes"], fields["bounds"] = tuple(fields["modes"]), Bounds(**fields["bounds"])
    fields["admitted"] = tuple(fields["admitted"])
    for name in ("tls_cert", "tls_key"):
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
