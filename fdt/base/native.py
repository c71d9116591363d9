"""Compiles a runtime's C++ operations once against the installed TensorFlow, and finds the library by a digest.

A package keeps its sources in `PACKAGE/native/*.cc`. The library is beside them, as Horovod's is beside its modules, or in the
user's cache if the package is not writable. Its name is a digest of sources, compiler flags, TensorFlow's version and the
processor's features, so that it is used only with these.
"""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from fdt.errors import NativeError

# One source takes 5 to 20 s on a quiet core.
_COMPILE_S = 600.0
# The library runs where it was compiled, so it may use all features of the processor. Sums keep their order.
# OpenMP only as far as it needs no library.
_FLAGS = (
    *("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
    *("-fPIC", "-shared", "-Wall"),
)


@dataclasses.dataclass(frozen=True)
class Library:
    """A compiled library, loaded into this process.

    Attributes:
        ops: Its TensorFlow operations, as `tf.load_op_library` gives them.
        functions: Its C functions.
    """

    ops: Any
    functions: ctypes.CDLL


@functools.cache
def library(package: str) -> Library:
    """Returns a package's library; compiles it if there is none yet.

    Args:
        package: Its name, e.g. "hfdt".

    Raises:
        NativeError: There is no compiler, or it fails.
    """
    import tensorflow as tf

    path = _compiled(package, [*tf.sysconfig.get_compile_flags()], [*tf.sysconfig.get_link_flags()])
    return Library(tf.load_op_library(str(path)), ctypes.CDLL(str(path)))


def _compiled(package: str, compile_flags: list[str], link_flags: list[str]) -> Path:
    folder = _sources(package)
    sources = sorted(folder.glob("*.cc"))
    flags = [*_FLAGS, *compile_flags]
    name = f"{package}-{_digest([*sources, *sorted(folder.glob('*.h'))], flags)}.so"
    places = [folder / "build", _cache()]
    for place in places:
        if _is_ours(place / name):
            return place / name
    for place in places:
        if _can_keep(place):
            _compile(sources, flags, link_flags, place / name)
            return place / name
    raise NativeError(f"No folder can keep the compiled operations of {package}. Tried: {', '.join(map(str, places))}")


def _sources(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "native"


def _digest(files: list[Path], flags: list[str]) -> str:
    digest = hashlib.sha256(_processor().encode())
    for part in (*flags, _tensorflow_version(), *(file.read_text() for file in files)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _tensorflow_version() -> str:
    import tensorflow as tf

    return f"{tf.version.VERSION} {tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}"


def _processor() -> str:
    """Returns the processor's features, as the kernel lists them."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return ""


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "fdt" / "native"


def _is_ours(path: Path) -> bool:
    """Whether a library exists that only this user and root can have written."""
    try:
        each = [os.stat(path), os.stat(path.parent)]
    except OSError:
        return False
    return all(s.st_uid in (0, os.geteuid()) and not s.st_mode & stat.S_IWOTH for s in each)


def _can_keep(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


def _compile(sources: list[Path], flags: list[str], link_flags: list[str], target: Path) -> None:
    """Compiles into a file of another name first, so that no process loads an incomplete library."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise NativeError(
            f"The operations of {target.name.partition('-')[0]} are not compiled on this machine, and no C++ compiler was "
            "found. Expected g++ (on Debian: apt-get install g++), as for Horovod."
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        partial = Path(folder) / target.name
        command = [compiler, *flags, "-o", str(partial), *map(str, sources), *link_flags]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeError(f"The compiler {compiler} did not come to its end: {error}") from error
        if done.returncode:
            raise NativeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        os.replace(partial, target)
