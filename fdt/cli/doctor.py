"""`fdt doctor`: reports what works on this machine, and remedies for what does not."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import entry_points

from fdt import __version__
from fdt.base import interpreter
from fdt.base.quiet_grpc import import_grpc
from fdt.cli.options import MODES, Doctor

# Each probe runs in a new Python process: a broken library may crash the process, and a working one is slow to import.
_PROBES: dict[str, tuple[str, str]] = {
    "tensorflow": ("import tensorflow as m; print(m.__version__)", "tensorflow>=2.16"),
    "keras": (
        "import keras as m; assert m.__version__ >= '3', m.__version__ + ' is too old'; print(m.__version__)",
        "keras>=3",
    ),
    "grpc": ("import grpc as m; print(m.__version__)", "grpcio>=1.62"),
    "protobuf": ("import google.protobuf as m, fdt.v1.job_pb2; print(m.__version__)", "protobuf>=4.25"),
    "pool": ("import psutil, grpc_health.v1, prometheus_client; print('what a pool imports')", "fdt[pool]"),
    "horovod": (
        "from hfdt.horovod import MISSING, hvd; assert hvd is not None, MISSING; assert hvd.gloo_built(), 'built without gloo';"
        + "print('for tensorflow, with gloo' + (', nccl' if hvd.nccl_built() else ', without nccl'))",
        "fdt setup (it builds Horovod for the TensorFlow of this environment), or name a pool with --server",
    ),
    "operations": (
        "from fdt.base import native; print('compiled:', ', '.join(path.name for path in native.of_all(native.provide)))",
        "apt-get install g++, then fdt setup; or name a pool with --server",
    ),
}
# Not needed by a client whose pool is on another machine.
_FOR_WORKERS = ("pool", "horovod", "operations")
_PROBE_LIMIT_S = 120.0
_BUSY = "nothing is known to be broken: try again when this machine is less busy"


def doctor(options: Doctor) -> int:
    """Prints a line for each check; returns 1 if something needed is broken, else 0."""
    print(f"{'':7}fdt         {__version__}")
    print(f"{'':7}python      {platform.python_version()}  {sys.executable}")
    print(f"{'':7}machine     {_machine()}")
    print(f"{'':7}gpu         {_gpus()}")
    broken = 0
    for name in _PROBES:
        needed = name not in _FOR_WORKERS or options.server is None
        found, remedy = probe(name)
        broken += _tell(name, found, remedy, needed)
    for name, found, remedy in _walls():
        _tell(name, found, remedy, needed=False)
    _tell("network", *_probe_network(), needed=False)
    for mode, word in MODES.items():
        _tell(word, *_probe_mode(mode), needed=False)
    if options.server is not None:
        broken += _look_at_pool(options)
    return 1 if broken else 0


def _tell(name: str, found: str, remedy: str | None, needed: bool) -> bool:
    """Prints a finding, and the remedy if there is one; returns whether something needed is broken."""
    is_broken = needed and remedy not in (None, _BUSY)
    sign = "ok" if remedy is None else "BROKEN" if is_broken else "-"
    print(f"{sign:7}{name:11} {found}", flush=True)
    if remedy:
        print(f"{'':19}remedy: {remedy}", flush=True)
    return is_broken


def _installing(package: str) -> str:
    """Returns the command that installs a package into this Python environment, which may lack pip."""
    if importlib.util.find_spec("pip") is not None:
        return f"{sys.executable} -m pip install '{package}'"
    if shutil.which("uv") is not None:
        return f"uv pip install --python {sys.executable} '{package}'"
    return f"install '{package}' into the environment of {sys.executable}, with the tool that made it"


def probe(name: str) -> tuple[str, str | None]:
    """Returns a finding on a library, and the remedy; the remedy is None if the library works."""
    code, remedy = _PROBES[name]
    # A remedy without a space is the name of a package.
    remedy = remedy if " " in remedy else _installing(remedy)
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            interpreter.of_code(code), capture_output=True, text=True, timeout=_PROBE_LIMIT_S, env=quiet, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not import within {_PROBE_LIMIT_S:.0f} s: this machine is slow, or busy", _BUSY
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit status {done.returncode}"
    return last, None if done.returncode == 0 else remedy


def _walls() -> list[tuple[str, str, str | None]]:
    """Returns for each mechanism of the workers' sandbox a name, a description, and the remedy if it is inactive."""
    from fdt.worker.sandbox import tried

    remedy = "a Linux of 5.13 or later on x86-64 that has Landlock and seccomp switched on, see docs/decisions/0037"
    return [("wall", f"{wall.name}: {wall.by or 'dropped'}", None if wall.stands else remedy) for wall in tried().walls]


def _probe_network() -> tuple[str, str | None]:
    from fdt.worker.network_namespace import REMEDY, network_wall

    missing = network_wall()
    if missing:
        return f"workers see this machine's network: {missing}", REMEDY
    return "workers see no network but their job's", None


def _probe_mode(mode: str) -> tuple[str, str | None]:
    found = list(entry_points(group="fdt.launchers", name=mode))
    return (found[0].value, None) if found else ("not in this version", "")


def _look_at_pool(options: Doctor) -> int:
    # Imported only now: if one of its libraries is broken, the probes have reported it.
    import_grpc()
    from fdt.cli.pool_diagnosis import look

    broken = 0
    for verdict in look(options):
        broken += _tell(verdict.name, verdict.found, verdict.remedy, verdict.broken)
    return broken


def _machine() -> str:
    cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{cores} cores, {memory_bytes / 2**30:.1f} GiB memory"


def _gpus() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "none (no nvidia-smi)"
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return "; ".join(done.stdout.strip().splitlines()) or "none"
