"""Sandboxes a process that reads what strangers send, to limit the damage of a program that should not be admitted.

Workers, their tunnels and the pool's examiner enter the sandbox once, before they read anything.
`python -m fdt.worker.sandbox` enters the sandbox and tests it.
"""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fdt.base import interpreter
from fdt.base.gpus import has_gpu_devices
from fdt.worker import landlock, seccomp
from fdt.worker.landlock import CHANGE_FILES, EXECUTE, KEEP_FILES, READ, USE_DEVICE, Rule

# Folders that the system's programs and libraries read.
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/opt/nvidia", "/opt/cuda")
# Files in /etc that the C library, OpenSSL and NVIDIA's libraries read; no accounts, no keys.
_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "host.conf", "hosts", "hostname", "resolv.conf"),
    *("gai.conf", "protocols", "services", "localtime", "timezone", "alternatives", "nvidia", "OpenCL"),
    *("ssl/openssl.cnf", "ssl/certs", "ssl/cert.pem", "pki/tls/openssl.cnf", "pki/tls/certs", "pki/ca-trust/extracted"),
)
# The kernel's information; other processes' memory, environment and files stay closed (Landlock's rules for ptrace).
_KERNEL = ("/proc", *(f"/sys/{part}" for part in ("devices", "bus", "class", "module", "fs/cgroup", "kernel/mm")))
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Devices of GPUs. Their libraries start programs (ptxas); processes that use them share memory and connect by sockets.
_GPUS = ("nvidia*", "dxg", "kfd", "dri", "infiniband")
_SHARED_MEMORY = "/dev/shm"
_GPU_CACHE = "CUDA_CACHE_PATH"
# Folders in an interpreter's prefix.
_PREFIX_PARTS = ("bin", "lib", "lib64", "share", "nvvm", "targets")
_PACKAGES = ("site-packages", "dist-packages")

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_TRIAL_LIMIT_S = 30.0


@dataclasses.dataclass(frozen=True)
class Reach:
    """The paths that one process may access, in addition to those that every program needs.

    Attributes:
        folder: Its own folder, in which it may write, its HOME and its temporary folder; None if it may write no files.
        reads: Files and folders that it may read.
        writes: Folders in which it may keep files.
    """

    folder: Path | None = None
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Returns JSON fields, which `from_fields` reads."""
        return {"folder": str(self.folder), "reads": [*map(str, self.reads)], "writes": [*map(str, self.writes)]}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Reach":
        """Returns the Reach with these fields."""
        return cls(Path(fields["folder"]), tuple(map(Path, fields["reads"])), tuple(map(Path, fields["writes"])))


@dataclasses.dataclass(frozen=True)
class Wall:
    """One mechanism of the sandbox.

    Attributes:
        name: What it protects.
        stands: Whether it is active.
        by: The kernel's feature that it uses; if it is inactive, the reason.
    """

    name: str
    stands: bool
    by: str

    def __str__(self) -> str:
        return f"{self.name} ({self.by})" if self.by else self.name


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """All mechanisms of the sandbox."""

    walls: tuple[Wall, ...]

    @property
    def missing(self) -> tuple[Wall, ...]:
        """The inactive mechanisms."""
        return tuple(wall for wall in self.walls if not wall.stands)

    def __str__(self) -> str:
        standing = ", ".join(str(wall) for wall in self.walls if wall.stands) or "nothing"
        missing = "; ".join(f"{wall.name}: {wall.by}" for wall in self.missing)
        return f"workers are walled in: {standing}" + (f". NOT walled: {missing}" if missing else "")


def raise_walls(reach: Reach) -> Sandbox:
    """Permanently takes from this process all rights that it does not need.

    Call it while there is one thread, after the slow imports. The result reports mechanisms that fail.

    Args:
        reach: This process's paths. Its folder becomes the current folder.
    """
    settle(reach.folder)
    gpu = has_gpu_devices()
    refused = _attempt(no_new_privileges)
    if refused:
        missing = f"no_new_privs: {refused}"
        return Sandbox(tuple(Wall(name, False, missing) for name in ("files", "system calls", "capabilities")))
    files = _wall("files", lambda: f"Landlock {landlock.restrict(rules(reach, gpu), abstract_sockets=gpu)}")
    capabilities = _wall("capabilities", drop_capabilities)
    # The filter comes last, since it refuses calls that the other mechanisms need.
    return Sandbox((files, _wall("system calls", lambda: _filter_calls(gpu)), capabilities))


def shut_door() -> None:
    """Forbids all threads to make unix sockets, once the worker has attached to the pool.

    Does nothing if there is a GPU, whose libraries need them.
    """
    if not has_gpu_devices():
        # That this fails was reported when the process entered the sandbox.
        with contextlib.suppress(OSError):
            seccomp.without_new_unix_sockets()


def rules(reach: Reach, gpu: bool) -> Iterator[Rule]:
    """Yields the rules for the files that a worker may reach."""
    run = READ | (EXECUTE if gpu else 0)
    yield from (Rule(Path(path), run) for path in _SYSTEM)
    yield from (Rule(path, run) for path in python_folders())
    yield from (Rule(Path("/etc") / name, READ) for name in _ETC)
    yield from (Rule(Path(path), READ) for path in _KERNEL)
    yield from (Rule(path, READ) for path in reach.reads)
    yield from (Rule(path, KEEP_FILES) for path in (reach.folder, *reach.writes) if path is not None)
    yield from (Rule(Path("/dev") / name, USE_DEVICE) for name in _DEVICES)
    if gpu:
        yield from (Rule(path, USE_DEVICE) for pattern in _GPUS for path in Path("/dev").glob(pattern))
        yield Rule(Path(_SHARED_MEMORY), KEEP_FILES)
        # CUDA names its threads (task/*/comm), and does not start where it cannot.
        yield Rule(Path(f"/proc/{os.getpid()}/task"), CHANGE_FILES)
        yield Rule(Path(os.environ[_GPU_CACHE]), READ)


@functools.cache
def python_folders() -> frozenset[Path]:
    """Returns the folders of the interpreter, its packages and their libraries.

    If a folder holds more than installed packages, such as a checkout or a home, returns only its loaded packages.
    """
    folders = {Path(prefix) / part for prefix in (sys.prefix, sys.base_prefix) for part in _PREFIX_PARTS}
    entries = [Path(entry).absolute() for entry in sys.path if entry]
    folders |= {entry for entry in entries if entry.name in _PACKAGES}
    mixed = [entry for entry in entries if entry.name not in _PACKAGES]
    # By `vars`, since `getattr` would import a lazily loaded module.
    files = {vars(module).get("__file__") for module in list(sys.modules.values()) if isinstance(module, ModuleType)}
    for file in filter(None, files):
        folders |= {entry / part for entry in mixed if (part := _outermost(file, entry))}
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return frozenset(
        folders | {Path(folder) for folder in libraries if folder not in ("", "/", os.path.expanduser("~"))}
    )


def _outermost(file: str, entry: Path) -> str:
    """Returns the package, or the file itself, that holds a loaded file in a folder of `sys.path`; "" if it is elsewhere."""
    below = file.removeprefix(f"{entry}/")
    return "" if below == file else below.partition("/")[0]


def settle(folder: Path | None) -> None:
    """Makes a folder this process's current folder, HOME and temporary folder; with None, its current folder becomes `/`."""
    if has_gpu_devices():
        # The cache of compiled kernels can be read, but not written: the user's other programs run its contents.
        os.environ.setdefault(_GPU_CACHE, os.path.expanduser("~/.nv/ComputeCache"))
    os.chdir(folder or "/")
    for name in ("TMPDIR", "TMP", "TEMP", "HOME") if folder else ():
        os.environ[name] = str(folder)
    # Python caches the folder that it found first.
    tempfile.tempdir = None
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wall(name: str, build: Callable[[], str]) -> Wall:
    try:
        return Wall(name, True, build())
    except OSError as error:
        return Wall(name, False, error.strerror or str(error))


def _attempt(act: Callable[[], None]) -> str:
    try:
        act()
    except OSError as error:
        return str(error)
    return ""


def no_new_privileges() -> None:
    """Keeps programs that this process starts from gaining rights that the process lacks (no_new_privs)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _filter_calls(gpu: bool) -> str:
    seccomp.restrict(programs=gpu)
    return "seccomp, with programs for the GPU" if gpu else "seccomp"


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> str:
    """Empties all capability sets; the bounding set first, since that needs a capability."""
    with contextlib.suppress(OSError):
        for number in range(64):
            _prctl(_PR_CAPBSET_DROP, number)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header, nothing = _CapabilityHeader(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), ctypes.byref(nothing)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    left = [name for name, value in _capabilities().items() if value]
    if left:
        raise OSError(0, f"the kernel left some in {', '.join(left)}")
    return ""


def _capabilities() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        name: int(value, 16) for name, _, value in (line.partition(":\t") for line in lines) if name in _CAPABILITY_SETS
    }


def _prctl(option: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(ctypes.c_int(option), *words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# ---- tests on this machine ------------------------------------------------------------------------------------------


def tried() -> Sandbox:
    """Returns the sandbox as it works on this machine: another process enters it and attacks each mechanism."""
    try:
        done = subprocess.run(
            interpreter.of_module("fdt.worker.sandbox"),
            capture_output=True,
            text=True,
            timeout=_TRIAL_LIMIT_S,
            check=True,
        )
        return Sandbox(tuple(Wall(**fields) for fields in json.loads(done.stdout)))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Sandbox((Wall("all", False, f"the trial failed: {error}"),))


def _try() -> Sandbox:
    with tempfile.TemporaryDirectory(prefix="fdt-walls-") as outside:
        forbidden = Path(outside) / "forbidden"
        forbidden.write_text("")
        folder = Path(outside) / "own"
        folder.mkdir()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                found = _held(raise_walls(Reach(folder)), forbidden)
                os.write(writer, json.dumps([dataclasses.asdict(wall) for wall in found]).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
    return Sandbox(tuple(Wall(**fields) for fields in json.loads(told)))


def _held(raised: Sandbox, forbidden: Path) -> list[Wall]:
    """Attacks each active mechanism; returns as inactive those that do not refuse the attack."""
    attacks: dict[str, Callable[[], object]] = {
        "files": forbidden.read_text,
        "system calls": lambda: os.chmod(forbidden, 0o600),
        "capabilities": lambda: os.chroot("/"),
    }
    return [_run_against(wall, attacks[wall.name]) if wall.stands else wall for wall in raised.walls]


def _run_against(wall: Wall, attack: Callable[[], object]) -> Wall:
    try:
        attack()
    except PermissionError:
        return wall
    return Wall(wall.name, False, "it was raised and did not hold")


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(wall) for wall in _try().walls]))
