"""Keeps a script that is only checked from changing files: what it writes goes into memory, and is lost with the process.

The process enters a mount namespace, in which an overlay with a tmpfs as its upper layer covers each folder that may hold the
user's files; everything else is read-only. Where the system allows no such namespace, Landlock permits writes to one temporary
folder and refuses all others. docs/decisions/0049 has the reasons.
"""

import atexit
import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fdt.base import interpreter
from fdt.base.config import NO_WALLS, walls_are_off
from fdt.base.temporary_folders import OwnFolder
from fdt.errors import UsageError
from fdt.worker import landlock
from fdt.worker.network_namespace import REMEDY, unshare
from fdt.worker.sandbox import drop_capabilities, no_new_privileges

# Environment variable that marks a process in such a namespace, and all processes that it starts.
_INSIDE = "FDT_WRITES"
_OVERLAID, _REFUSED, _STAY = "overlaid", "refused", "stay"
_TOLD = {
    _OVERLAID: "what the script writes goes into memory and is gone when it ends: no file of yours is changed",
    _REFUSED: "the script may write into its temporary folder only, all other writes are refused ({missing}): no file of "
    "yours is changed",
    _STAY: f"what the script writes stays ({NO_WALLS} is set)",
}
_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 0x1000, 0x4000, 0x40000
# Flags of a mount that have the same number in statvfs(2) and mount(2): nosuid, nodev, noexec, noatime, nodiratime.
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048
# Folders that stay as they are: the kernel's, and devices.
_KERNEL = ("/proc", "/sys", "/dev")
# Folders that become read-only, since they hold none of the user's files.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/etc", "/run")


def enter(kept: Sequence[Path] = ()) -> str:
    """Keeps this process, which must have one thread, and all that it starts from changing the user's files.

    Args:
        kept: Files and folders, as absolute paths, in which changes are permanent.

    Returns:
        A line for the user; "" if files are protected already.

    Raises:
        UsageError: Nothing on this system keeps files from being changed.
    """
    if _INSIDE in os.environ:
        return ""
    kind, missing = (_STAY, "") if walls_are_off() else (_OVERLAID, "")
    if kind == _OVERLAID:
        try:
            _overlay(kept)
        except OSError as error:
            kind, missing = _REFUSED, error.strerror or str(error)
            _refuse_writes(kept, missing)
    os.environ[_INSIDE] = kind
    return _TOLD[kind].format(missing=missing)


def _refuse_writes(kept: Sequence[Path], missing: str) -> None:
    """Refuses this process all writes but those to a temporary folder and to `kept`."""
    folder = OwnFolder("fdt-run-")
    atexit.register(folder.remove)
    written = [folder.path, *kept, *map(Path, ("/dev", "/proc"))]
    rules = [landlock.Rule(Path("/"), landlock.LOOK), *(landlock.Rule(path, landlock.EVERYTHING) for path in written)]
    try:
        no_new_privileges()
        landlock.restrict(rules, abstract_sockets=True)
    except OSError as error:
        raise UsageError(
            f"This command runs the script, and this system cannot keep it from changing your files ({missing}; Landlock: "
            f"{error.strerror}). Remedy: {REMEDY}; or set {NO_WALLS}=1, and what the script writes stays."
        ) from error
    os.environ["TMPDIR"] = str(folder.path)
    tempfile.tempdir = None


# ---- an overlay -----------------------------------------------------------------------------------------------------


def _overlay(kept: Iterable[Path]) -> None:
    current, temporary = os.getcwd(), os.path.realpath(tempfile.gettempdir())
    was_writable = os.access(current, os.W_OK)
    by_user = unshare(_CLONE_NEWNS)
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    mounts = [path for path in _mount_points() if not _below(path, _KERNEL)]
    with contextlib.ExitStack() as opened:
        # All folders are opened before the first one is covered.
        lower = {path: opened.enter_context(_opened(path)) for path in _covered(mounts, temporary)}
        staying = {str(path): opened.enter_context(_opened(str(path))) for path in kept}
        for path in mounts:
            _remount(path, _MS_RDONLY)
        _mount("tmpfs", temporary, "tmpfs", 0, "mode=0700")
        # redirect_dir=on lets folders of the lower layer be renamed; a user's own namespace has userxattr only.
        option = "userxattr" if by_user else "redirect_dir=on"
        layers = _Layers(opened.enter_context(_opened(temporary)), mounts, option)
        # A folder is covered after its parents; the temporary folder, which holds the upper layers, comes last.
        for path in sorted(lower, key=lambda path: (_below(path, (temporary,)), path.count("/"))):
            layers.cover(path, lower[path])
        for path, descriptor in staying.items():
            _mount(f"/proc/self/fd/{descriptor}", path, None, _MS_BIND)
            _remount(path, 0)
    # Enters the current folder again, which so far is the lower layer's.
    os.chdir(current)
    if by_user:
        drop_capabilities()
    if was_writable and not os.access(current, os.W_OK):
        raise OSError(0, f"no overlay over {current}")


def _covered(mounts: Sequence[str], temporary: str) -> set[str]:
    """Returns folders that may hold the user's files: the folders in `/`, all mounts, and the temporary folder."""
    top = {entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)}
    return {path for path in top | set(mounts) | {temporary} if not _below(path, (*_KERNEL, *_SYSTEM))} - {"/"}


class _Layers:
    """Makes overlays, whose upper layers are in one folder."""

    def __init__(self, folder: int, mounts: Sequence[str], option: str):
        self._folder, self._mounts, self._option = f"/proc/self/fd/{folder}", mounts, option
        self._number = 0

    def cover(self, path: str, descriptor: int) -> None:
        """Covers a folder by an overlay; if that fails because of mounts below it, covers the folders in it."""
        lower = f"/proc/self/fd/{descriptor}"
        try:
            if not os.path.isdir(lower):
                raise NotADirectoryError
            _mount("overlay", path, "overlay", 0, self._layers(lower))
        except OSError:
            # If a folder above is covered, the path leads to what the mount had hidden, so the mount is bound there again.
            _mount(lower, path, None, _MS_BIND | _MS_REC)
            if any(_below(mount, (path,)) for mount in self._mounts if mount != path):
                self._cover_inner(path, lower)

    def _cover_inner(self, path: str, lower: str) -> None:
        for entry in os.scandir(lower):
            inner = os.path.join(path, entry.name)
            if entry.is_dir(follow_symlinks=False) and inner not in self._mounts:
                with _opened(inner) as descriptor:
                    self.cover(inner, descriptor)

    def _layers(self, lower: str) -> str:
        self._number += 1
        upper, work = f"{self._folder}/{self._number}", f"{self._folder}/{self._number}.work"
        for folder in (upper, work):
            os.mkdir(folder)
        status = os.stat(lower)
        with contextlib.suppress(OSError):
            # The upper layer gets the folder's owner, if this process may change owners.
            os.chown(upper, status.st_uid, status.st_gid)
        shutil.copystat(lower, upper)
        return f"lowerdir={lower},upperdir={upper},workdir={work},{self._option}"


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        return [os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1")) for line in file]


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _remount(path: str, flag: int) -> None:
    _mount("none", path, None, _MS_REMOUNT | _MS_BIND | flag | (os.statvfs(path).f_flag & _KEPT_FLAGS))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"no mount at {target}: {os.strerror(number)}")


def main(argv: Sequence[str]) -> None:
    """Protects files except in KEPT, then runs a module: `python -m fdt.script.file_overlay KEPT MODULE [ARGS...]`."""
    enter([Path(argv[0])])
    command = interpreter.for_script(*argv[1:])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
