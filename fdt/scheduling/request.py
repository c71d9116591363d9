"""The seam: what a pool asks of a cluster's scheduler, and what a scheduler must offer.

Schedulers are found by the entry-point group `fdt.schedulers`. What is placed is always one process, `fdt serve --join`, in a
scheduler job of its own, so that each host can be replaced and given back alone.
"""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol, runtime_checkable

from fdt.base import interpreter
from fdt.base.config import Network, PlacingConfig
from fdt.errors import UsageError

# Files of a pool in its folder on the shared file system.
TOKEN_FILE, CA_FILE = "join-token", "ca.pem"


@dataclasses.dataclass(frozen=True)
class HostRequest:
    """One host, as the pool asks for it.

    Attributes:
        pool: Name of the pool; of all its scheduler jobs.
        name: Of this host, unique in the pool.
        address: "host:port" of the pool.
        network: CIDR of the trusted network.
        folder: Where all hosts see the pool's files.
        token: Opens the pool to hosts, and nothing else.
        tls_ca: PEM text of the authority that signed the pool's certificate; "" if none is given.
        config: The rest, which is the same for all hosts.
    """

    pool: str
    name: str
    address: str
    network: str
    folder: Path
    token: str = dataclasses.field(repr=False)
    tls_ca: str
    config: PlacingConfig

    @classmethod
    def of(cls, config: PlacingConfig, network: Network, address: str, token: str, pool: str = "") -> "HostRequest":
        """Returns a request for any host of a pool.

        Args:
            config: Of the hosts.
            network: The trusted network, as the pool is connected to it.
            address: Where the pool listens.
            token: The hosts' own, or what stands for it where it is shown.
            pool: Its name; one that no other pool has if it is empty.
        """
        host, _, port = address.rpartition(":")
        if host.strip("[]") in ("0.0.0.0", "::"):
            address = f"{network.address}:{port}"
        tls_ca = config.tls_ca.read_text() if config.tls_ca is not None else ""
        pool = pool or f"fdt-{secrets.token_hex(3)}"
        return cls(pool, "host", address, network.cidr, config.folder, token, tls_ca, config)

    def command(self, python: str | None = None, folder: str | None = None, name: str | None = None) -> list[str]:
        """Returns the command of the host. The token is named by its file, as everybody can read commands.

        Args:
            python: Interpreter on the host, if not this one.
            folder: Where the host sees the pool's files, if not at `self.folder`.
            name: How the host calls itself, if not `self.name`.
        """
        files = folder or str(self.folder)
        command = interpreter.of_module("fdt", "serve", "--join", self.address, python=python)
        command += ["--slots", str(self.config.slots), "--name", name or self.name, "--trusted-network", self.network]
        command += ["--join-token-file", f"{files}/{TOKEN_FILE}"]
        if self.tls_ca:
            command += ["--tls-ca", f"{files}/{CA_FILE}"]
        if self.config.open_servers:
            command.append("--open-servers")
        bounds = self.config.bounds
        for flag, num_bytes in (("--memory", bounds.memory_bytes), ("--disk", bounds.disk_bytes)):
            if num_bytes is not None:
                command += [flag, f"{-(-num_bytes // 1024)}KiB"]
        if not self.config.walls:
            command.append("--no-walls")
        return command


@dataclasses.dataclass(frozen=True)
class File:
    """A file that is written before a request: its mode is as `os.chmod` takes it."""

    name: str
    text: str = dataclasses.field(repr=False)
    mode: int


@dataclasses.dataclass(frozen=True)
class Rendering:
    """What a request is, in the scheduler's own terms.

    Attributes:
        files: In the pool's folder.
        commands: Command lines.
        submission: What a scheduler is told that has no commands, and is never in a file.
    """

    files: tuple[File, ...]
    commands: tuple[tuple[str, ...], ...]
    submission: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a scheduler says of one request.

    Attributes:
        waits: Whether it has not been started yet, or is to be started again.
        ended: Whether nothing of it runs, or will.
        reason: The scheduler's own words.
        log: Where the host's output goes.
    """

    waits: bool
    ended: bool
    reason: str
    log: Path | None = None


class SchedulerUnreachableError(Exception):
    """The scheduler does not answer now; it may later."""


class Renderer(Protocol):
    """Tells how a request looks to a scheduler."""

    def render(self, request: HostRequest) -> Rendering:
        """Returns files and commands; writes and starts nothing.

        Raises:
            UsageError: The arguments for the scheduler make no sense.
        """


@runtime_checkable
class Scheduler(Renderer, Protocol):
    """Starts and ends hosts. Every method takes bounded time, and is called from one thread.

    Attributes:
        restarts: Whether a host that was killed is begun again by the scheduler itself, at once and under its name.
    """

    restarts: bool

    def check(self, request: HostRequest) -> None:
        """Asks whether the scheduler would ever grant this, before anything is started.

        Raises:
            UsageError: It would not, it is not installed, or does not answer.
        """

    def start(self, request: HostRequest) -> str:
        """Hands a request in; returns the scheduler's name for it.

        Raises:
            UsageError: It is refused.
            SchedulerUnreachableError: The scheduler does not answer.
        """

    def observe(self, pool: str, started: Mapping[str, HostRequest]) -> Mapping[str, Observation]:
        """Returns what became of requests, by the scheduler's names.

        Raises:
            SchedulerUnreachableError: The scheduler does not answer.
        """

    def stop(self, names: Sequence[str]) -> None:
        """Ends requests, whether they wait or run, or have ended.

        Raises:
            SchedulerUnreachableError: The scheduler does not answer.
        """

    def sweep(self, pool: str) -> None:
        """Ends every request of a pool, also one whose name never came back.

        Raises:
            SchedulerUnreachableError: The scheduler does not answer.
        """


def named_arguments(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Returns arguments of the form NAME=VALUE, with what stands for those that are not given.

    Raises:
        UsageError: One is of another form, or of another name.
    """
    given = dict(defaults)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in defaults or not equals or not value:
            raise UsageError(f"Expected {', '.join(f'{known}=VALUE' for known in defaults)}. Received: {argument}")
        given[name] = value
    return given


def find_renderer(name: str) -> Renderer:
    """Returns the scheduler of this name, from the entry points of the group `fdt.schedulers`.

    Raises:
        UsageError: There is none.
    """
    found = {point.name: point for point in metadata.entry_points(group="fdt.schedulers")}
    if name not in found:
        raise UsageError(
            f"No scheduler of this name is known; there is: {', '.join(sorted(found)) or '-'}. Received: --on {name}"
        )
    renderer: Renderer = found[name].load()()
    return renderer


def find_scheduler(name: str) -> Scheduler:
    """Returns the scheduler of this name, if it can be asked for hosts from here.

    Raises:
        UsageError: There is none, or its requests can only be shown.
    """
    found = find_renderer(name)
    if not isinstance(found, Scheduler):
        raise UsageError(
            f"Hosts cannot be asked for from here on {name}: add --dry-run, and hand in yourself what is printed. Received: "
            f"--on {name}"
        )
    return found
