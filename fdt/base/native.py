"""Compiles a runtime's C++ operations once against the installed TensorFlow, and finds the library by a digest.

A package keeps its sources in `PACKAGE/native/*.cc`; headers of `fdt.program.update` are for all. A library's name is a digest
of sources, compiler flags, TensorFlow's version and the processor's features, so that it is used only with these. It is kept
in the user's cache, from which the next environment takes it; `fdt setup` puts it beside the sources too, for all who use the
environment. Hosts without a compiler get libraries for any processor of recent years in a package of their own
(`fdt setup --wheel`), or do without (`optional`).
"""

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fdt.base import build_cache
from fdt.errors import NativeError, NoCompilerError

# The packages that have operations; what compiles longest comes first.
_SHARED = "fdt.program.update"
PACKAGES = ("nfdt", _SHARED, "hfdt")
# The package that `fdt setup --wheel` makes.
GIVEN = "fdt_operations"
# A library takes 10 to 40 s on a quiet core.
_COMPILE_S = 600.0
# Sums keep their order, and no multiplication is fused with an addition, as in TensorFlow's operations. OpenMP only as far as
# it needs no library. Eigen's own code for processors that compute in 16 bits does not compile in TensorFlow 2.21, and gives
# `Eigen::half` another type than TensorFlow's library was compiled with: Eigen is not told of them.
_FLAGS = (
    "-ffp-contract=off", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-fPIC", "-Wall", "-U__AVX512FP16__",
)  # fmt: skip
# TensorFlow's headers warn a hundred times a source, behind what is wrong.
_ERROR = re.compile(r"\b(fatal )?error:")
_SHOWN_ERRORS, _SHOWN_CHARACTERS = 5, 4000
_CACHE = "native"


@dataclasses.dataclass(frozen=True)
class Library:
    """A compiled library, loaded into this process.

    Attributes:
        ops: Its TensorFlow operations, as `tf.load_op_library` gives them.
        functions: Its C functions.
    """

    ops: Any
    functions: ctypes.CDLL


@dataclasses.dataclass(frozen=True)
class Processor:
    """The processors for which a library is compiled.

    Attributes:
        flag: The compiler's flag for them.
        features: What they have, as /proc/cpuinfo names it.
    """

    flag: str
    features: tuple[str, ...]


# Of 2013 and later.
_PORTABLE = Processor("-march=x86-64-v3", ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))


@functools.cache
def library(package: str) -> Library:
    """Returns a package's library; compiles it if there is none yet.

    Args:
        package: Its name, e.g. "hfdt".

    Raises:
        NativeError: There is no compiler, or it fails.
    """
    import tensorflow as tf

    path = _found(package) or _compiled(package, _own())
    return Library(tf.load_op_library(str(path)), ctypes.CDLL(str(path)))


@functools.cache
def optional(package: str) -> Library | None:
    """Returns a package's library; None on a machine that has neither it nor a compiler, which this process's log then says.

    Raises:
        NativeError: There is a compiler, and it fails.
    """
    try:
        return library(package)
    except NoCompilerError as error:
        print(f"fdt worker: {error} Until then TensorFlow's own operations do their work.", file=sys.stderr, flush=True)
        return None


def provide(package: str) -> Path:
    """Finds or compiles a package's library, and puts it beside the package's sources if these can be written.

    Returns:
        Its path.

    Raises:
        NativeError: There is no compiler, or it fails.
    """
    path = _found(package) or _compiled(package, _own())
    beside = _beside(package)
    if path.parent == beside or not build_cache.can_keep(beside):
        return path
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        os.replace(shutil.copy(path, folder), beside / path.name)
    return beside / path.name


def portable(package: str) -> Path:
    """Compiles a package's library for any processor of recent years; returns its path.

    Raises:
        NativeError: There is no compiler, or it fails.
    """
    place = build_cache.folder(_CACHE) / _name(package, _PORTABLE)
    return place if build_cache.is_ours(place) else _compiled(package, _PORTABLE)


def of_all(find: Callable[[str], Path]) -> list[Path]:
    """Returns the libraries of all packages, which `find` (`provide` or `portable`) compiles beside each other.

    Raises:
        NativeError: There is no compiler, or it fails.
    """
    import tensorflow  # noqa: F401, not by several threads at once

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="fdt-compile") as pool:
        return list(pool.map(find, PACKAGES))


def are_lacking() -> bool:
    """Whether this machine has neither compiled operations nor a compiler, as far as can be told without TensorFlow."""
    if _compiler() or importlib.util.find_spec(GIVEN) is not None:
        return False
    return not all(
        any(next(place.glob(f"{package}-*.so"), None) for place in (_beside(package), build_cache.folder(_CACHE)))
        for package in PACKAGES
    )


def _compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


@functools.cache
def processor_features() -> frozenset[str]:
    """Returns the features of this machine's processor, as the kernel lists them."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        return frozenset(line.partition(":")[2].split())
    return frozenset()


def _own() -> Processor:
    """Returns this machine's processor: what is compiled here may use all of its features."""
    return Processor("-march=native", tuple(sorted(processor_features())))


def _found(package: str) -> Path | None:
    given = importlib.util.find_spec(GIVEN)
    for processor, places in (
        (_own(), (_beside(package), build_cache.folder(_CACHE))),
        (_PORTABLE, [Path(place) for place in (given and given.submodule_search_locations) or ()]),
    ):
        if processor_features().issuperset(processor.features):
            name = _name(package, processor)
            for place in places:
                if build_cache.is_ours(place / name):
                    return place / name
    return None


def _compiled(package: str, processor: Processor) -> Path:
    places = (build_cache.folder(_CACHE), _beside(package))
    for place in places:
        if build_cache.can_keep(place):
            target = place / _name(package, processor)
            _compile(_sources(package), _flags(processor), target)
            return target
    raise NativeError(f"No folder can keep the compiled operations of {package}. Tried: {', '.join(map(str, places))}")


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "native"


def _sources(package: str) -> list[Path]:
    return sorted(_folder(package).glob("*.cc"))


def _beside(package: str) -> Path:
    return _folder(package) / "build"


def _flags(processor: Processor) -> list[str]:
    import tensorflow as tf

    return [*_FLAGS, processor.flag, f"-I{_folder(_SHARED)}", *tf.sysconfig.get_compile_flags()]


def _name(package: str, processor: Processor) -> str:
    """Returns the file name of a library, by the content of all that it is made of."""
    import tensorflow as tf

    headers = [file for each in dict.fromkeys((package, _SHARED)) for file in sorted(_folder(each).glob("*.h"))]
    texts = [file.read_text() for file in (*_sources(package), *headers)]
    version = f"{tf.version.VERSION} {tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}"
    # Not where TensorFlow's headers are: another environment has the same ones elsewhere.
    flags = [flag for flag in _flags(processor) if not flag.startswith("-I")]
    digest = hashlib.sha256()
    for part in (*processor.features, *flags, version, *texts):
        digest.update(part.encode() + b"\0")
    return f"{package}-{digest.hexdigest()[:16]}.so"


def _compile(sources: Sequence[Path], flags: Sequence[str], target: Path) -> None:
    """Compiles the sources as one: each alone would read TensorFlow's headers for longer than its own code takes.

    No process finds an incomplete library.
    """
    import tensorflow as tf

    compiler = _compiler()
    if not compiler:
        raise NoCompilerError(
            f"The operations of {target.name.partition('-')[0]} are not compiled on this machine, and no C++ compiler was "
            "found. Expected g++ (on Debian: apt-get install g++), as for Horovod; or wheels of a machine that has one: "
            "`fdt setup --wheel DIR` there, then here pip install DIR/*.whl."
        )
    cached = [found] if (found := shutil.which("ccache")) else []
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        compiled, partial = str(Path(folder, "all.o")), str(Path(folder, target.name))
        *others, last = sources
        included = [argument for source in others for argument in ("-include", str(source))]
        _run([*cached, compiler, *flags, *included, "-c", str(last), "-o", compiled])
        _run([compiler, "-shared", "-Wl,--strip-all", "-o", partial, compiled, *tf.sysconfig.get_link_flags()])
        os.replace(partial, target)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"The compiler did not come to its end: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if _ERROR.search(line)]
        told = "\n".join(errors[:_SHOWN_ERRORS]) or done.stderr
        raise NativeError(f"{' '.join(command)} failed:\n{told[-_SHOWN_CHARACTERS:]}")
