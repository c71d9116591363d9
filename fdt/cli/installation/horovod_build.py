"""Builds Horovod's wheel: TensorFlow's operations and Gloo alone, patched, kept in the user's cache by what it is made of.

Horovod's last release has no wheels and declares no build requirements, so no installer can build it from its metadata alone.
Its setup.py compiles Gloo twice, with symbols for a debugger, and operations for XLA that need headers which TensorFlow has
dropped. So CMake is called here, for the one library that ranks load, and the wheel is made of it and Horovod's Python.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from fdt.base import build_cache, interpreter
from fdt.base.horovod_record import RECORD, Needs, needs
from fdt.base.native import processor_features
from fdt.cli.installation import horovod_source, installer
from fdt.cli.installation.wheel_file import Wheel
from fdt.errors import UsageError

VERSION = "0.28.1"
# What it imports.
REQUIRES = ("cloudpickle", "packaging", "psutil", "pyyaml")
# cmake 4 refuses its CMakeLists.txt. The rest is for `pip download`, which has its setup.py tell name and version.
BUILD_NEEDS = ("cmake", "pip", "setuptools", "wheel", *REQUIRES)
_SETTINGS = {
    "HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITHOUT_PYTORCH": "1", "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1",
}  # fmt: skip
# Loops are vectorized as with -O3, for sums of gradients.
_FLAGS = "-O2 -fvect-cost-model=dynamic -DNDEBUG"
_LINK_FLAGS = "-Wl,--strip-all"
# Libraries of TensorFlow are found beside the package, in whatever environment.
_RUN_PATH = "$ORIGIN/../../tensorflow;$ORIGIN/../../tensorflow/python"
# Features of processors that Horovod's own code uses, as /proc/cpuinfo and compilers call them.
_FEATURES = ("f16c", "avx", "fma")
_KEPT_WHEELS = 8
_CACHE = "wheels"
_COMPILER_S = 60.0


@dataclasses.dataclass(frozen=True)
class Build(Needs):
    """All that decides what is built: two equal ones give the same wheel.

    Attributes:
        horovod: Horovod's version.
        platform: Tag of the platform, such as "linux_x86_64".
        compiler: What the compiler says of itself.
        flags: For compiler and linker.
        settings: Horovod's own, the user's own among them: HOROVOD_GPU_OPERATIONS=NCCL, or other frameworks.
    """

    horovod: str
    platform: str
    compiler: str
    flags: str
    settings: Mapping[str, str]

    @classmethod
    def here(cls) -> Self:
        """Returns what is to be built in this environment.

        Raises:
            UsageError: There is no TensorFlow or no compiler.
        """
        wanted = needs()
        if wanted is None:
            raise UsageError("no TensorFlow in this environment: install it first, e.g. tensorflow>=2.16")
        flags = " ".join((_FLAGS, *(f"-m{name}" for name in _features()), os.environ.get("CXXFLAGS", ""), _LINK_FLAGS))
        own = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
        return cls(
            **dataclasses.asdict(wanted),
            horovod=VERSION,
            platform=sysconfig.get_platform().replace("-", "_").replace(".", "_"),
            compiler=_compiler(),
            flags=flags,
            settings={**_SETTINGS, **own},
        )

    @property
    def wheel(self) -> Wheel:
        """Returns the wheel's description; its build tag is a digest of all fields."""
        digest = hashlib.sha256(self.record()).hexdigest()[:16]
        tag = f"{self.python}-{self.python}-{self.platform}"
        scripts = ("horovodrun = horovod.runner.launch:run_commandline",)
        return Wheel("horovod", self.horovod, f"1fdt{digest}", tag, REQUIRES, scripts)

    def record(self) -> bytes:
        """Returns all fields as the package's record."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True).encode()


def kept(build: Build) -> Path | None:
    """Returns the wheel in the user's cache; None if it was not built yet."""
    path = build_cache.folder(_CACHE) / build.wheel.file_name
    return path if build_cache.is_ours(path) else None


def require() -> None:
    """Checks what takes no time, before anything is compiled.

    Raises:
        UsageError: Something that `make` needs is missing.
    """
    _require("make", shutil.which("make"), "apt-get install make")
    place = build_cache.folder(_CACHE)
    if not build_cache.can_keep(place):
        raise UsageError(f"the wheel cannot be kept in {place}: set XDG_CACHE_HOME to a folder that can be written")


def make(build: Build) -> Path:
    """Compiles Horovod and keeps its wheel in the user's cache; returns its path.

    Raises:
        UsageError: The build fails.
    """
    place = build_cache.folder(_CACHE)
    with tempfile.TemporaryDirectory(prefix="fdt-setup-") as temporary:
        folder = Path(temporary)
        tools = folder / "tools"
        requirements = installer.hashed(folder, *BUILD_NEEDS)
        installer.install("--require-hashes", "--requirement", str(requirements), "--target", str(tools))
        environment = build_environment(build, folder)
        source = horovod_source.fetch(folder, environment)
        compiled = _compiled(build, source, folder, environment)
        path = place / build.wheel.file_name
        build.wheel.write(path, _files(build, source, compiled))
    build_cache.forget_oldest(place, "horovod-*.whl", _KEPT_WHEELS)
    return path


def build_environment(build: Build, folder: Path) -> dict[str, str]:
    """Returns the environment of the build's commands, with its requirements in `folder`/tools."""
    tools = folder / "tools"
    return {
        **os.environ,
        **build.settings,
        "HOROVOD_BUILD_ARCH_FLAGS": " ".join(f"-m{name}" for name in _features()),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tools), os.environ.get("PYTHONPATH")))),
        "PATH": os.pathsep.join((str(tools / "bin"), os.environ.get("PATH", os.defpath))),
        # CMake uses ccache where there is one, which else takes the temporary folder's name for content.
        "CCACHE_BASEDIR": str(folder),
        "CCACHE_NOHASHDIR": "1",
    }


def _compiled(build: Build, source: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """Compiles the library that ranks load; returns the folder in which it and Horovod's metadata.json are."""
    output, work = folder / "output", folder / "work"
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        # Eight sources are compiled as one (CMake's default): most of a source's time is its headers'.
        "CMAKE_UNITY_BUILD": "ON",
        "CMAKE_CXX_FLAGS_RELEASE": _FLAGS,
        "CMAKE_SHARED_LINKER_FLAGS": _LINK_FLAGS,
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": _RUN_PATH,
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY_RELEASE": str(output),
        "PYTHON_EXECUTABLE": interpreter.path(),
    }
    if not any(name.startswith("HOROVOD_GPU") for name in build.settings):
        # It would look for a compiler for GPUs, and try it.
        settings |= {"CMAKE_CUDA_COMPILER": "NOTFOUND", "CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit": "ON"}
    options = [f"-D{name}={value}" for name, value in settings.items()]
    cmake = shutil.which("cmake", path=environment["PATH"]) or "cmake"
    installer.run([cmake, "-S", str(source), "-B", str(work), *options], environment)
    cores = str(len(os.sched_getaffinity(0)))
    installer.run([cmake, "--build", str(work), "--target", "tensorflow", "--parallel", cores], environment)
    return output


def _files(build: Build, source: Path, compiled: Path) -> dict[str, bytes]:
    paths = [(path, source) for path in sorted((source / "horovod").rglob("*.py"))]
    paths += [(path, compiled) for path in sorted((compiled / "horovod").rglob("*")) if path.is_file()]
    files = {str(path.relative_to(within)): path.read_bytes() for path, within in paths}
    files[f"horovod-{build.horovod}.dist-info/LICENSE"] = (source / "LICENSE").read_bytes()
    return {**files, f"horovod/{RECORD}": build.record()}


def _features() -> list[str]:
    return [name for name in _FEATURES if name in processor_features()]


def _compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    _require("g++ or CXX", compiler, "apt-get install g++ make")
    assert compiler is not None
    said = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=_COMPILER_S, check=False
    ).stdout
    return said.partition("\n")[0]


def _require(what: str, found: str | None, remedy: str) -> None:
    if not found:
        raise UsageError(
            f"Horovod is C++, and {what} was not found. On Debian and Ubuntu: {remedy}. Or build its wheel on a machine that "
            "has a compiler, with the same Python and TensorFlow: `fdt setup --wheel DIR`; then here: pip install DIR/*.whl"
        )
