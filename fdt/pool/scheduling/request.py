"""Defines a pool's request to a cluster's scheduler, and the interface that a scheduler implements.

The entry-point group `fdt.schedulers` names the schedulers. Every host is one process, `fdt serve --join`, in a scheduler job
of its own, so that it can be replaced and given back separately.
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
    """The pool's request for one host.

    Attributes:
        pool: Name of the pool, and of all its scheduler jobs.
        name: This host's name, unique in the pool.
        address: "host:port" of the pool.
        network: CIDR of the trusted network.
        folder: The pool's files, on a path that all hosts see.
        token: The token of hosts, which permits joining the pool and nothing else.
        tls_ca: PEM text of the authority that signed the pool's certificate; "" if none is given.
        config: The other settings, which are the same for all hosts.
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
            config: The hosts' configuration.
            network: The trusted network, as the pool is connected to it.
            address: Where the pool listens.
            token: The hosts' token, or a placeholder for showing the request.
            pool: The pool's name; a unique name is made if it is empty.
        """
        host, _, port = address.rpartition(":")
        if host.strip("[]") in ("0.0.0.0", "::"):
            address = f"{network.address}:{port}"
        tls_ca = config.tls_ca.read_text() if config.tls_ca is not None else ""
        pool = pool or f"fdt-{secrets.token_hex(3)}"
        return cls(pool, "host", address, network.cidr, config.folder, token, tls_ca, config)

    def command(self, python: str | None = None, folder: str | None = None, name: str | None = None) -> list[str]:
        """Returns the host's command. It names the token's file, since every user can read tokens on command lines.

        Args:
            python: Interpreter on the host; None for this one.
            folder: The folder of the pool's files on the host; None for `self.folder`.
            name: The host's own name; None for `self.name`.
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
    """A file that is written before a request; `mode` is as for `os.chmod`."""

    name: str
    text: str = dataclasses.field(repr=False)
    mode: int


@dataclasses.dataclass(frozen=True)
class Rendering:
    """A request in the scheduler's own terms.

    Attributes:
        files: Files in the pool's folder.
        commands: Command lines that submit the request.
        submission: The request, if the scheduler has no commands; it is never written to a file.
    """

    files: tuple[File, ...]
    commands: tuple[tuple[str, ...], ...]
    submission: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Observation:
    """A scheduler's answer about one request.

    Attributes:
        waits: Whether the host has not been started yet, or will be restarted.
        ended: Whether the host neither runs nor will run again.
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
    """Translates requests into a scheduler's own terms."""

    def render(self, request: HostRequest) -> Rendering:
        """Returns files and commands; writes and starts nothing.

        Raises:
            UsageError: The arguments for the scheduler are invalid.
        """


@runtime_checkable
class Scheduler(Renderer, Protocol):
    """Starts and ends hosts. Every method takes bounded time, and is called from one thread.

    Attributes:
        restarts: Whether the scheduler itself restarts a killed host, at once and under the same name.
    """

    restarts: bool

    def check(self, request: HostRequest) -> None:
        """Asks whether the scheduler would ever grant this, before anything is started.

        Raises:
            UsageError: The scheduler would never grant it, is not installed, or does not answer.
        """

    def start(self, request: HostRequest) -> str:
        """Submits a request; returns the scheduler's name for it.

        Raises:
            UsageError: The scheduler refuses it.
            SchedulerUnreachableError: The scheduler does not answer.
        """

    def observe(self, pool: str, started: Mapping[str, HostRequest]) -> Mapping[str, Observation]:
        """Returns the states of requests, by the scheduler's names.

        Raises:
            SchedulerUnreachableError: The scheduler does not answer.
        """

    def stop(self, names: Sequence[str]) -> None:
        """Ends waiting and running requests; ignores ended ones.

        Raises:
            SchedulerUnreachableError: The scheduler does not answer.
        """

    def sweep(self, pool: str) -> None:
        """Ends every request of a pool, including those whose names `start` never returned.

        Raises:
            SchedulerUnreachableError: The scheduler does not answer.
        """


def named_arguments(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Parses arguments of the form NAME=VALUE, and adds the defaults of those that are not given.

    Raises:
        UsageError: An argument has another form, or an unknown name.
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
    """Returns the scheduler of this name, if it can start hosts itself.

    Raises:
        UsageError: There is none, or its requests can only be shown.
    """
    found = find_renderer(name)
    if not isinstance(found, Scheduler):
        raise UsageError(
            f"FDT cannot request hosts from {name} itself: add --dry-run, and submit what it prints. Received: --on {name}"
        )
    return found
