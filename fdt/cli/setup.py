"""`fdt setup`: puts what is compiled into this Python's environment: Horovod, and our own operations."""

import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fdt.base import horovod_record, interpreter
from fdt.cli.installation import horovod_build, installer
from fdt.cli.installation.horovod_build import Build
from fdt.cli.options import Setup
from fdt.errors import UsageError

# Runs in a process of its own, since it imports TensorFlow.
_OPERATIONS = """
from fdt.base import native
native.of_all(native.provide)
"""
_WORKS = """
from hfdt.horovod import hvd
assert hvd.gloo_built(), "built without gloo"
print("with nccl" if hvd.nccl_built() else "without nccl")
"""
_GIVEN = """
import sys
from pathlib import Path
from fdt.cli.installation import operations_wheel
print(operations_wheel.write(Path(sys.argv[1])))
"""
_LIMIT_S = 1800.0
_SHOWN_CHARACTERS = 2000


def setup(options: Setup) -> int:
    """Runs `fdt setup`; returns the exit status.

    Raises:
        UsageError: Something that the build needs is missing, or the build fails.
    """
    if options.wheel is not None:
        return _give(options.wheel, options.rebuild)
    build = _wanted(options.rebuild) if options.rebuild or horovod_record.complaint() is not None else None
    print("fdt: compiling our own operations, unless they are here", flush=True)
    # Beside Horovod, whose downloads and CMake leave cores idle.
    with ThreadPoolExecutor(1, "fdt-operations") as beside:
        operations = beside.submit(_python, _OPERATIONS)
        wheel = _wheel(build, options.rebuild) if build is not None else None
        operations.result()
    print("fdt: our own operations: compiled", flush=True)
    if wheel is not None:
        installer.install("--no-deps", "--reinstall", str(wheel))
        _install_missing()
    print(f"fdt: Horovod {horovod_build.VERSION}, {_python(_WORKS)}", flush=True)
    return 0


def _give(folder: Path, rebuild: bool) -> int:
    """Writes wheels of what is compiled for hosts that have no compiler."""
    build = _wanted(rebuild)
    folder.mkdir(parents=True, exist_ok=True)
    wheel = _wheel(build, rebuild)
    names = [Path(shutil.copy(wheel, folder)).name, _python(_GIVEN, str(folder.absolute()))]
    print(
        f"fdt: on a host with the same Python and TensorFlow: pip install {' '.join(str(folder / name) for name in names)}",
        flush=True,
    )
    return 0


def _wanted(rebuild: bool) -> Build:
    """Returns what is to be built or taken from the cache, once all that this needs is here."""
    build = Build.here()
    installer.require()
    if rebuild or horovod_build.kept(build) is None:
        horovod_build.require()
    return build


def _wheel(build: Build, rebuild: bool) -> Path:
    wheel = None if rebuild else horovod_build.kept(build)
    if wheel is not None:
        print(f"fdt: Horovod {build.horovod} for TensorFlow {build.tensorflow} was built before: {wheel}", flush=True)
        return wheel
    print(f"fdt: building Horovod {build.horovod} for TensorFlow {build.tensorflow}: some minutes", flush=True)
    return horovod_build.make(build)


def _install_missing() -> None:
    """Installs what Horovod imports. What is there stays: the script may need that version."""
    missing = [name for name in horovod_build.REQUIRES if not installer.is_installed(name)]
    if missing:
        with tempfile.TemporaryDirectory(prefix="fdt-setup-") as folder:
            requirements = installer.hashed(Path(folder), *missing)
            installer.install("--require-hashes", "--requirement", str(requirements))


def _python(code: str, *arguments: str) -> str:
    """Runs code in a new process of this Python; returns the last line that it printed."""
    try:
        done = subprocess.run(
            [*interpreter.of_code(code), *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"compiling did not end within {_LIMIT_S:.0f} s; is this machine very busy?") from error
    if done.returncode:
        raise UsageError(f"what was compiled does not work:\n{done.stderr.strip()[-_SHOWN_CHARACTERS:]}")
    return (done.stdout.strip().splitlines() or [""])[-1]
