"""Checks whether the packages that a pool and its workers need are installed; a client needs fewer."""

import importlib.util
import sys
from collections.abc import Sequence

from fdt.errors import UsageError

# Packages of the extra `pool` that every pool and worker imports. Where hosts join, `cryptography` is checked.
_POOL = ("psutil", "grpc_health", "prometheus_client")
# By mode: another package that its workers import, and how to install it.
_RUNTIMES = {"sync": ("horovod", "`fdt setup` builds it, in some minutes; `--mode async` works without it")}


def require_pool(modes: Sequence[str]) -> None:
    """Refuses to start workers whose packages are not installed.

    Args:
        modes: The modes of this machine's workers; empty if it has no workers.

    Raises:
        UsageError: A package is missing.
    """
    missing = [name for name in _POOL if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{sys.prefix} has only what sends scripts to a pool (`fdt run --server HOST:PORT`). To train on this machine, "
            f"install the extra `pool`: pip install 'fdt[pool]'. Missing: {', '.join(missing)}"
        )
    for mode in modes:
        name, remedy = _RUNTIMES.get(mode, ("", ""))
        if name and importlib.util.find_spec(name) is None:
            raise UsageError(
                f"--mode {mode} needs {name} on the machine that trains, and {sys.prefix} has none: {remedy}"
            )
