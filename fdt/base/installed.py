"""Tells whether what trains on this machine is installed here: a client of a pool needs less."""

import importlib.util
import sys
from collections.abc import Sequence

from fdt.errors import UsageError

# Of the extra `pool`, imported by every pool and worker. `cryptography` is asked for where hosts join.
_POOL = ("psutil", "grpc_health", "prometheus_client")
# By mode: what its workers import besides, and how it comes here.
_RUNTIMES = {"sync": ("horovod", "`fdt setup` builds it, in some minutes; `--mode async` works without it")}


def require_pool(modes: Sequence[str]) -> None:
    """Refuses to start workers that could not be imported.

    Args:
        modes: Of the workers of this machine; none if they are all elsewhere.

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
