"""Keeps a pool's list of jobs and its token in a folder, for the pool that is later started in its place.

The tokens of persons and the audit log are in the same folder, written by other modules. Only one pool at a time uses a state
folder. If the folder becomes unwritable or is deleted, the pool reports that and continues.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from fdt.base import log, user_folder
from fdt.errors import UsageError
from fdt.pool.journal import FILE, Entry, Journal

_LOCK, _TOKEN = "lock", "token"
# The tokens of persons, and the log of callers' actions.
TOKENS, AUDIT_LOG = "tokens.json", "audit.log"
_MAX_TOKEN_BYTES = 4096


class StateFolder:
    """An open state folder.

    Attributes:
        path: The folder.
        entries: The jobs of earlier pools, oldest first.
    """

    def __init__(self, path: Path) -> None:
        """Opens a folder, or makes it.

        Raises:
            UsageError: The folder is in use by another pool, holds other files, belongs to another user, is open to others,
                cannot be written, or is of another version.
        """
        self.path = path
        self._token = ""
        self._lock = -1
        # The journal's entries, by job; None for an entry that must be written again, since an earlier pool wrote it.
        self._written: dict[str, Entry | None] = {}
        self._said = ""
        self._journal = self._opened()
        self.entries: Sequence[Entry] = self._journal.entries()
        self._written = dict.fromkeys(entry.name for entry in self.entries)

    def _opened(self) -> Journal:
        try:
            user_folder.make(self.path)
            self._check()
            self._lock = self._locked()
        except OSError as error:
            raise UsageError(
                f"The state folder of a pool cannot be used: {error}. Expected a folder that this user may write: --state DIR. "
                f"Received: {self.path}"
            ) from error
        try:
            return Journal(self.path)
        except BaseException:
            self._unlock()
            raise

    def _check(self) -> None:
        complaint = user_folder.complaint(self.path)
        if complaint is not None:
            raise UsageError(
                f"The state folder of a pool holds its token, so it must be this user's alone: {complaint}. Received: "
                f"{self.path}"
            )
        names = [each.name for each in self.path.iterdir() if each.name not in (_LOCK, _TOKEN)]
        # Older audit logs have a number behind the name.
        others = [name for name in names if not name.startswith((TOKENS, AUDIT_LOG))]
        if others and FILE not in others:
            raise UsageError(
                f"The state folder of a pool is its own: expected an empty folder, or one that a pool has kept ({FILE}). Give "
                f"another with --state DIR. Received: {self.path} with {', '.join(sorted(others)[:3])}"
            )

    def _locked(self) -> int:
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise UsageError(
                f"This state folder is in use by another pool, process {owner}. Use that one, end it first, or give each pool "
                f"a folder of its own: --state DIR. Received: {self.path}"
            ) from None
        except OSError:
            os.close(descriptor)
            raise

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def token(self, fresh: str) -> str:
        """Returns the token of the earlier pools; if there is none, keeps `fresh` and returns it.

        Raises:
            UsageError: The token cannot be written.
        """
        with contextlib.suppress(OSError, UnicodeDecodeError):
            descriptor = os.open(self.path / _TOKEN, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, encoding="ascii") as file:
                found = file.read(_MAX_TOKEN_BYTES).strip()
            if found and found.isprintable():
                self._token = found
                return found
        self._token = fresh
        try:
            self._write_token()
        except OSError as error:
            raise UsageError(f"The pool's token cannot be kept: {error}. Received: {self.path}") from error
        return fresh

    def _write_token(self) -> None:
        path = self.path / _TOKEN
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(self._token + "\n")

    def keep(self, entries: Sequence[Entry]) -> None:
        """Writes the present state into the journal. Reports a failure once, and retries at the next call."""
        if {entry.name: entry for entry in entries} == self._written and not self._said and self._journal.is_there:
            return
        try:
            if not self._journal.is_there:
                self._begin_anew()
            changed = [entry for entry in entries if self._written.get(entry.name) != entry]
            names = {entry.name for entry in entries}
            self._journal.write(changed, [name for name in self._written if name not in names])
        except (sqlite3.Error, OSError, UsageError) as error:
            if not self._said:
                log.notice(f"the list of jobs cannot be kept: {error}; the pool goes on. Look at {self.path}")
            self._said = str(error)
            return
        if self._said:
            log.notice(f"the list of jobs is kept again in {self.path}")
        self._said, self._written = "", {entry.name: entry for entry in entries}

    def _begin_anew(self) -> None:
        """Makes the folder and its journal again after they were deleted."""
        self._journal.close()
        self._unlock()
        self._written = {}
        self._journal = self._opened()
        if self._token:
            self._write_token()

    def close(self) -> None:
        """Closes the journal, and lets another pool use the folder."""
        self._journal.close()
        self._unlock()
