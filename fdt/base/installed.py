"""Checks whether the packages that a pool and its workers need are installed; a client needs fewer."""

import importlib.util
import sys
from collections.abc import Sequence

from fdt.base import horovod_record, native
from fdt.errors import UsageError

# Packages of the extra `pool` that every pool and worker imports. Where hosts join, `cryptography` is checked.
_POOL = ("psutil", "grpc_health", "prometheus_client")


def require_pool(modes: Sequence[str], num_workers: int) -> None:
    """Refuses to start workers whose packages are not installed.

    Args:
        modes: The modes of this machine's workers.
        num_workers: How many workers it has. A synchronous worker that is alone needs no Horovod.

    Raises:
        UsageError: A package is missing.
    """
    missing = [name for name in _POOL if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{sys.prefix} has only what sends scripts to a pool (`fdt run --server HOST:PORT`). To train on this machine, "
            f"install the extra `pool`: pip install 'fdt[pool]'. Missing: {', '.join(missing)}"
        )
    if "sync" in modes and num_workers > 1 and (complaint := horovod_record.complaint()) is not None:
        raise UsageError(
            f"--mode sync with several workers needs Horovod on the machine that trains. In {sys.prefix}: {complaint}. "
            "`fdt setup` builds it, in some minutes; `--mode async` and `--workers 1` work without it"
        )


def slower() -> str | None:
    """Returns what to tell who starts workers where TensorFlow's own operations do what ours would; None where ours do it."""
    if not native.are_lacking():
        return None
    return (
        "there is neither a C++ compiler nor compiled operations: asynchronous workers, and one synchronous worker, work with "
        "TensorFlow's own, more slowly. To mend it: apt-get install g++ make, then `fdt setup`; or take the wheels of a "
        "machine that has them (`fdt setup --wheel DIR` there)"
    )
