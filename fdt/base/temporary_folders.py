"""Temporary folders that hold what users send: gone with their owner, even one that was killed.

Whoever makes one holds a lock on a file in it, which the kernel frees when the process ends. Who comes next deletes those
whose lock is free.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

PREFIXES = ("fdt-pool-", "fdt-run-", "fdt-host-")
_LOCK = "owner.lock"
# Linux ends the path of a unix socket after 107 bytes; the longest one in such a folder is that of a pool's workers.
_MAX_PARENT = 107 - len("/fdt-pool-12345678/workers.sock")


class OwnFolder:
    """A folder of this process's own.

    Attributes:
        path: It; only this user can open it.
    """

    def __init__(self, prefix: str) -> None:
        """Makes one, and sweeps what processes of this user's that were killed have left.

        Args:
            prefix: One of `PREFIXES`.
        """
        assert prefix in PREFIXES
        parent = tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _MAX_PARENT else "/tmp"
        sweep(Path(parent))
        # The folder is deleted from here: by its path it may be a mount, which nobody can delete (`fdt.script.file_overlay`).
        self._parent = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = _locked(self.path, os.O_CREAT)
            # A sweeper may have been here between the folder and its lock.
            if lock is not None:
                self._lock = lock
                return

    def remove(self) -> None:
        """Deletes the folder with all that is in it."""
        if self._parent >= 0:
            shutil.rmtree(self.path.name, ignore_errors=True, dir_fd=self._parent)
            with contextlib.suppress(OSError):
                # A process that may not delete the folder itself leaves it to whoever comes next.
                (self.path / _LOCK).touch()
        self.abandon()

    def abandon(self) -> None:
        """Leaves the folder to whoever else holds it: what a forked child does."""
        for descriptor in {self._lock, self._parent} - {-1}:
            os.close(descriptor)
        self._lock = self._parent = -1


def sweep(parent: Path) -> list[Path]:
    """Deletes the folders of this user's processes that are no more; returns which.

    A folder is touched only if it has one of our names, belongs to this user, is no link, and holds a lock file that nobody
    has locked.
    """
    swept = []
    with contextlib.suppress(OSError):
        for folder in [each for each in parent.iterdir() if each.name.startswith(PREFIXES)]:
            with contextlib.suppress(OSError):
                status = os.lstat(folder)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    continue
                lock = _locked(folder, 0)
                if lock is None:
                    continue
                try:
                    shutil.rmtree(folder, ignore_errors=True)
                    swept.append(folder)
                finally:
                    os.close(lock)
    return swept


def _locked(folder: Path, flags: int) -> int | None:
    """Locks a folder; returns the descriptor, or None if somebody else has it or it is gone."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Still the file of this name: whoever had the lock may have deleted it.
        if os.stat(folder / _LOCK).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    os.close(descriptor)
    return None
