"""`fdt setup`: builds Horovod against the installed TensorFlow, into the same Python environment.

Horovod's last release has no wheels and declares no build requirements, so no installer can build it from its metadata alone.
The build's requirements, besides a C++ compiler and make, are installed into a temporary folder. Files are installed by their
hashes (`setup_requirements.txt`), so an index, or a server that impersonates it, cannot substitute others.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fdt.base import interpreter
from fdt.cli.options import Setup
from fdt.errors import UsageError

HOROVOD = "horovod==0.28.1"
_HOROVOD_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging")
# cmake 4 refuses its CMakeLists.txt; its setup.py imports pkg_resources, which setuptools 81 has removed.
_BUILD_NEEDS = ("setuptools", "wheel", "cmake", "cffi", "pycparser", *_HOROVOD_NEEDS)
_REQUIREMENTS = Path(__file__).with_name("setup_requirements.txt")
# A requirement and the hashes of its files, which follow on indented lines.
_REQUIREMENT = re.compile(r"^([a-z]+)==.*(?:\n +--hash=.*)+", re.MULTILINE)
_SWITCHES = {
    "HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITHOUT_PYTORCH": "1", "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1",
}  # fmt: skip
# TensorFlow 2.19 and later lack these headers, or headers that these include. Of Horovod's files only xla_mpi_ops.cc includes
# them, by these names, and uses them on GPUs only. Empty files take their place: Horovod's CMake declares TensorFlow's folder a
# system one, so the compiler searches the folder with the empty files first.
_DROPPED_IN = (2, 19)
_DROPPED_HEADERS = (
    "tensorflow/compiler/tf2xla/xla_op_kernel.h", "tensorflow/compiler/tf2xla/xla_op_registry.h",
    *(f"tensorflow/compiler/xla/{name}" for name in (
        "client/xla_builder.h", "service/custom_call_target_registry.h", "service/hlo.pb.h", "shape.h", "xla_data.pb.h",
    )),
)  # fmt: skip
# Horovod requests a build with debug symbols, which are not needed and take a quarter of the build's time.
_TOOLCHAIN = 'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "")\n'
_LIMIT_S = 3600.0
# Error lines in the output of compilers and pip.
_ERROR = re.compile(r"\b(fatal )?error:|^ERROR", re.IGNORECASE)
_SHOWN_ERRORS = 5


def setup(options: Setup) -> int:
    """Runs `fdt setup`; returns the exit status.

    Raises:
        UsageError: Something that the build needs is missing, or the build fails.
    """
    from fdt.cli.doctor import probe

    tensorflow = _tensorflow()
    found, remedy = probe("horovod")
    if remedy is None and not options.rebuild:
        print(f"fdt: Horovod {found}: nothing to do (--rebuild builds it anew)", flush=True)
        return 0
    _require("g++ or CXX", os.environ.get("CXX") or shutil.which("g++"), "apt-get install g++")
    _require("make", shutil.which("make"), "apt-get install make")
    print(f"fdt: building {HOROVOD} against TensorFlow {tensorflow}; this takes some minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="fdt-setup-") as folder:
        _build(Path(folder), tensorflow)
    found, remedy = probe("horovod")
    if remedy is not None:
        raise UsageError(f"Horovod was built, but does not work: {found}")
    print(f"fdt: Horovod {found}", flush=True)
    return 0


def build_environment(folder: Path, tensorflow: str) -> dict[str, str]:
    """Returns the build's environment; writes a toolchain file, and headers that this TensorFlow lacks, into `folder`.

    Args:
        folder: The temporary folder, with the build's requirements under `needs`.
        tensorflow: The version of TensorFlow to build against.
    """
    needs, headers = folder / "needs", folder / "headers"
    changes = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(needs), os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join((str(needs / "bin"), os.environ.get("PATH", os.defpath))),
    }
    if "CMAKE_TOOLCHAIN_FILE" not in os.environ:
        (folder / "toolchain.cmake").write_text(_TOOLCHAIN)
        changes["CMAKE_TOOLCHAIN_FILE"] = str(folder / "toolchain.cmake")
    if tuple(int(number) for number in tensorflow.split(".")[:2]) >= _DROPPED_IN:
        for name in _DROPPED_HEADERS:
            (headers / name).parent.mkdir(parents=True, exist_ok=True)
            (headers / name).touch()
        changes["CXXFLAGS"] = f"{os.environ.get('CXXFLAGS', '')} -I{headers}".strip()
    # The user's own variables take precedence: HOROVOD_GPU_OPERATIONS=NCCL, or other frameworks.
    return {**_SWITCHES, **os.environ, **changes}


def _build(folder: Path, tensorflow: str) -> None:
    _install(_hashed(folder, *_BUILD_NEEDS), ["--target", str(folder / "needs")])
    # Installed packages are kept: the script may need their versions.
    if missing := [name for name in _HOROVOD_NEEDS if not _is_installed(name)]:
        _install(_hashed(folder, *missing), [])
    _install(
        _hashed(folder, "horovod"),
        # No cache: the name of a Horovod wheel does not tell which TensorFlow it was built against.
        ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--reinstall", "--no-binary", "horovod"],
        build_environment(folder, tensorflow),
    )


def _hashed(folder: Path, *names: str) -> Path:
    """Writes a file of requirements with these names, whose hashes pip and uv check; returns its path."""
    known = {match[1]: match[0] for match in _REQUIREMENT.finditer(_REQUIREMENTS.read_text())}
    path = folder / f"{names[0]}.txt"
    path.write_text("\n".join(known[name] for name in names) + "\n")
    return path


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _tensorflow() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise UsageError(f"no TensorFlow in the environment of {sys.executable}: install it first, e.g. tensorflow>=2.16")


def _require(what: str, found: str | None, remedy: str) -> None:
    if not found:
        raise UsageError(f"Horovod is C++, and {what} was not found. On Debian and Ubuntu: {remedy}")


def _install(requirements: Path, arguments: list[str], environment: dict[str, str] | None = None) -> None:
    """Runs pip, or uv if the environment has no pip: both accept these arguments, except one.

    Does not run in the working directory: uv would use the index that a `pyproject.toml` there names.
    """
    arguments = ["--require-hashes", "--requirement", str(requirements), *arguments]
    if importlib.util.find_spec("pip") is not None:
        arguments = ["--force-reinstall" if argument == "--reinstall" else argument for argument in arguments]
        command = interpreter.of_module("pip", "install", "--quiet", "--disable-pip-version-check", *arguments)
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--quiet", f"--python={sys.executable}", *arguments]
    else:
        raise UsageError(f"neither pip is installed beside {sys.executable} nor uv is in PATH; one of them is needed")
    # A failed build prints thousands of lines.
    with tempfile.NamedTemporaryFile("w+", prefix="fdt-setup-", suffix=".log", errors="replace", delete=False) as log:
        try:
            done = subprocess.run(
                command, env=environment, cwd="/", stdout=log, stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"{' '.join(command)} did not end within {_LIMIT_S:.0f} s; see {log.name}") from error
        log.seek(0)
        found = [line.strip() for line in log if _ERROR.search(line)][:_SHOWN_ERRORS]
    if done.returncode:
        shown = "".join(f"\n  {line}" for line in found)
        raise UsageError(f"{' '.join(command)} ended with status {done.returncode}; its output: {log.name}{shown}")
    os.unlink(log.name)
