"""What plain python gives, kept in the user's cache: it is another only where the scripts, a package or the processor is."""

import fcntl
import functools
import hashlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.fidelity.cases import SCRIPT, Outcome, run_cases, written_cases

_PACKAGES = ("tensorflow", "keras", "tf-keras", "numpy", "scipy", "pandas", "scikit-learn")
# What arithmetic depends on: results are compared bit for bit.
_ENVIRONMENT = ("TF_", "OMP_", "KERAS_", "XLA_", "MKL_")
# Of checkouts and branches that take turns.
_MAX_KEPT = 8


def plain_outcomes(names: Sequence[str], keras: int) -> dict[str, Outcome]:
    """Returns what plain python gives; the first process that asks runs what is missing."""
    folder = _folder()
    out = folder / f"keras{keras}"
    out.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    with open(folder / f"keras{keras}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for error in out.glob("*.error"):
            error.unlink()
        known = dict(written_cases(names, out))
        missing = [name for name in names if name not in known]
        return known | (run_cases(missing, 0, "", out, keras) if missing else {})


@functools.cache
def _folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = home / "fdt-tests" / "plain"
    folder = kept / _digest()
    folder.mkdir(parents=True, exist_ok=True)
    by_age = sorted(kept.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in by_age[_MAX_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _digest() -> str:
    """Of all that results depend on."""
    cpu = Path("/proc/cpuinfo").read_text()
    parts = [
        *(f"{path.name} {path.read_text()}" for path in sorted(SCRIPT.parent.glob("*.py"))),
        *(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
        *(f"{name} {value}" for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT)),
        platform.python_version(),
        str(sorted({line for line in cpu.splitlines() if line.startswith(("model name", "flags"))})),
        str(os.cpu_count()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
