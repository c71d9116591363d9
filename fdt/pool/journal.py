"""Keeps a pool's journal: a SQLite file with the pool's jobs, for the pool that is later started in its place.

One thread writes it. The journal survives the death of the pool's process at any moment (write-ahead log); if the machine
fails, the last entries may be missing, but the journal is consistent.
"""

import contextlib
import dataclasses
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from fdt.errors import UsageError
from fdt.pool.state.entities import Job, JobState

FILE = "journal.sqlite"
# In the file's header: the application, and the version of the format.
_APPLICATION, _VERSION = 0x66647431, 2
# The longest wait for another program that reads the file.
_BUSY_S = 0.5
_LOST = "its pool ended"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A job's row in the journal; its fields are those of `fdt.pool.state.entities.Job`."""

    name: str
    state: str
    mode: str
    num_workers: int
    script: str
    steps: int
    submitted_s: float
    ended_s: float
    reason: str
    session: bytes
    owner: str

    @classmethod
    def of(cls, job: Job, steps: int) -> "Entry":
        """Returns a job's entry."""
        return cls(
            job.name, job.state.value, job.mode, job.num_workers, job.script, steps, job.submitted_s, job.ended_s,
            job.reason, job.session, job.owner,
        )  # fmt: skip

    def job(self) -> Job:
        """Returns the entry as a job that has ended."""
        return Job(
            self.name, self.mode, self.num_workers, self.script, self.submitted_s, False, self.session,
            JobState(self.state), ended_s=self.ended_s, reason=self.reason, owner=self.owner,
        )  # fmt: skip


_COLUMNS = tuple(field.name for field in dataclasses.fields(Entry))


class Journal:
    """An open journal."""

    def __init__(self, folder: Path) -> None:
        """Opens the journal in a folder, or makes it.

        Raises:
            UsageError: The file is no journal, has another version, or cannot be written.
        """
        self._path = folder / FILE
        is_new = not self._path.exists()
        # The time of the last write, which must be read before the file is opened, since opening writes to it.
        self._left_s = max((path.stat().st_mtime for path in folder.glob(f"{FILE}*")), default=0.0)
        try:
            # One thread at a time uses it: the thread that opens it passes it to the pool's thread.
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
            try:
                self._open(is_new)
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.DatabaseError as error:
            raise UsageError(_unusable(self._path, error)) from error
        self._inode = os.stat(self._path).st_ino

    def _open(self, is_new: bool) -> None:
        run = self._connection.execute
        if is_new:
            run(f"PRAGMA application_id = {_APPLICATION}")
            run(f"PRAGMA user_version = {_VERSION}")
        found = tuple(run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if found[0] != _APPLICATION:
            raise UsageError(
                f"{self._path} is no journal of a pool. Give the pool a folder of its own: --state DIR. Received: "
                f"application_id={found[0]:#x}"
            )
        if found[1] != _VERSION:
            raise UsageError(
                f"{self._path} is of another version of fdt: expected version {_VERSION} of the journal. Give the pool another "
                f"folder (--state DIR), or delete this one, and with it the list of its jobs. Received: version={found[1]}"
            )
        run("PRAGMA journal_mode = WAL")
        # When a commit returns, the kernel has the data: enough if the process is killed.
        run("PRAGMA synchronous = NORMAL")
        columns = ", ".join(f"{name} NOT NULL" for name in _COLUMNS[1:])
        with self._connection:
            run(f"CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, {columns})")
            # Written so that a file that cannot be written fails now, not at the first job.
            run(f"PRAGMA user_version = {_VERSION}")

    @property
    def is_there(self) -> bool:
        """Whether the file is still where it was opened."""
        with contextlib.suppress(OSError):
            return os.stat(self._path).st_ino == self._inode
        return False

    def entries(self) -> list[Entry]:
        """Returns the jobs of earlier pools, oldest first; jobs that had not ended become interrupted.

        Raises:
            UsageError: The file is damaged.
        """
        try:
            rows = self._connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM jobs").fetchall()
            found = [_as_left(Entry(*row), self._left_s) for row in rows]
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise UsageError(_unusable(self._path, error)) from error
        return sorted(found, key=lambda entry: number_of(entry.name))

    def write(self, entries: Iterable[Entry], gone: Iterable[str]) -> None:
        """Writes entries, replacing those with the same names, and deletes the entries `gone`.

        Raises:
            sqlite3.Error: The disk is full or broken; nothing has been written.
        """
        places = ", ".join("?" * len(_COLUMNS))
        with self._connection:
            # Not `dataclasses.astuple`, which copies the values.
            rows = [tuple(getattr(entry, name) for name in _COLUMNS) for entry in entries]
            self._connection.executemany(f"INSERT OR REPLACE INTO jobs VALUES ({places})", rows)
            self._connection.executemany("DELETE FROM jobs WHERE name = ?", [(name,) for name in gone])

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def number_of(job: str) -> int:
    """Returns N of "job-N"; 0 for other names."""
    digits = job.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _as_left(entry: Entry, last_s: float) -> Entry:
    if JobState(entry.state).ended:
        return entry
    return dataclasses.replace(entry, state=JobState.INTERRUPTED.value, ended_s=last_s, reason=_LOST)


def _unusable(path: Path, error: Exception) -> str:
    return (
        f"The journal of a pool cannot be used: {error}. Expected an undamaged file that this user may write, on a disk with "
        f"free space. Correct that, or give the pool another folder: --state DIR. Received: {path}"
    )
