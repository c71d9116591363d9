"""Checks before a pool starts whether the scheduler would grant its hosts, and shows the request (`--dry-run`)."""

import dataclasses
import shlex

from fdt.base.config import Network, PlacingConfig
from fdt.pool.scheduling.request import HostRequest, find_renderer, find_scheduler

# Shown instead of the hosts' token.
_TOKEN = "TOKEN"


def check(config: PlacingConfig, network: Network) -> None:
    """Refuses a request that the scheduler would never grant, before anything is started.

    Raises:
        UsageError: The scheduler would never grant it, or does not answer.
    """
    request = HostRequest.of(config, network, f"{network.address}:1", _TOKEN)
    find_scheduler(config.scheduler).check(dataclasses.replace(request, name="host-1"))


def show(config: PlacingConfig, network: Network, address: str) -> str:
    """Returns the output of `--dry-run` for the first host: files with their modes, commands, and any other submission.

    Args:
        config: The hosts' configuration.
        network: The trusted network.
        address: Where the pool would listen.

    Raises:
        UsageError: The scheduler is unknown, or its arguments are invalid.
    """
    request = HostRequest.of(config, network, address, _TOKEN, pool="fdt-pool")
    request = dataclasses.replace(request, name="pool-1", folder=config.folder / "fdt-hosts-pool")
    rendering = find_renderer(config.scheduler).render(request)
    parts = [f"# {request.folder / file.name} (mode {file.mode:04o})\n{file.text}" for file in rendering.files]
    parts += [rendering.submission] if rendering.submission else []
    parts += [f"$ {shlex.join(command)}\n" for command in rendering.commands]
    return "\n".join(parts).rstrip("\n")
