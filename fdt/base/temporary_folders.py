"""Makes temporary folders for users' data, which are deleted after their process ends, even if it was killed.

A process holds a lock on a file in its folder; the kernel frees the lock when the process ends. The next process that makes a
folder deletes those whose lock is free.
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
# Linux limits a unix socket's path to 107 bytes; the longest one in such a folder is that of a pool's workers.
_MAX_PARENT = 107 - len("/fdt-pool-12345678/workers.sock")


class OwnFolder:
    """A folder of this process's own.

    Attributes:
        path: The folder; only this user can open it.
    """

    def __init__(self, prefix: str) -> None:
        """Makes a folder, and deletes those that this user's killed processes have left.

        Args:
            prefix: One of `PREFIXES`.
        """
        assert prefix in PREFIXES
        parent = tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _MAX_PARENT else "/tmp"
        sweep(Path(parent))
        # Delete the folder relative to this descriptor: its path may become a mount point (`fdt.script.file_overlay`).
        self._parent = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = _locked(self.path, os.O_CREAT)
            # Another process's sweep may have deleted the folder before it was locked.
            if lock is not None:
                self._lock = lock
                return

    def remove(self) -> None:
        """Deletes the folder with all that is in it."""
        if self._parent >= 0:
            shutil.rmtree(self.path.name, ignore_errors=True, dir_fd=self._parent)
            with contextlib.suppress(OSError):
                # A process that may not delete the folder leaves it to the next sweep.
                (self.path / _LOCK).touch()
        self.abandon()

    def abandon(self) -> None:
        """Gives the folder up without deleting it, as a forked child does."""
        for descriptor in {self._lock, self._parent} - {-1}:
            os.close(descriptor)
        self._lock = self._parent = -1


def sweep(parent: Path) -> list[Path]:
    """Deletes the folders of this user's ended processes; returns these folders.

    A folder is deleted only if it has one of our prefixes, belongs to this user, is no link, and has a lock file that no
    process has locked.
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
    """Locks a folder; returns the descriptor, or None if another process holds the lock or the folder is gone."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Check that the file still has this name: the process that held the lock before may have deleted it.
        if os.stat(folder / _LOCK).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    os.close(descriptor)
    return None
