"""Bounds how much of its machine one worker takes: the fork server checks often, and ends a worker over its bounds.

Without another bound a worker may use nine tenths of its machine's memory: a training that needs more would hardly have run in
plain python. What several workers take together the kernel bounds; it ends them before other processes.

The kernel's own bounds do not fit: RLIMIT_AS and RLIMIT_DATA count reserved memory (stacks of threads, arenas), RLIMIT_NPROC
counts all processes of a user and none of root's, control groups need the machine's permission. Between two checks a worker
may exceed its bounds: memory can grow by some gigabytes a second.
"""

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# Of the machine's memory, what a worker may use if nobody says otherwise.
_SHARE = 0.9
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_Found = TypeVar("_Found")
# The least time between two checks of a worker, and how many times a check's duration it is at least, to keep the cost low.
LOOK_S = 0.1
_RARELY = 50
# The most files in a worker's folder: each state that it writes is a file.
_MAX_FILES = 10_000
# Fields of /proc/PID/stat after the process's name, which may contain any character.
_SESSION, _NUM_THREADS, _RSS = 3, 17, 21
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/smaps_rollup: the process's own memory and its share of the fork server's, without the store's files,
# which the kernel drops when it needs the memory.
_OWN = ("Pss_Anon:", "Pss_Shmem:")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The bounds of one worker process; None for a share of its machine's memory, and for the machine's disk."""

    memory_bytes: int | None = None
    disk_bytes: int | None = None
    # Threads of the worker and of the processes it has started; TensorFlow has some for each core.
    tasks: int = 4096

    def here(self) -> "Bounds":
        """Returns these bounds on this machine."""
        share = all_workers_bytes()
        return self if self.memory_bytes is not None else dataclasses.replace(self, memory_bytes=share)

    def memory_of_each(self, num_workers: int) -> int:
        """Returns the bytes of memory that each of some workers may use that share this machine."""
        return min(self.here().memory_bytes or 0, all_workers_bytes() // max(1, num_workers))

    def __str__(self) -> str:
        said = f"each worker may use {shown(self.here().memory_bytes or 0)} of memory"
        return said if self.memory_bytes is not None else f"{said}, nine tenths of this machine's (--memory)"


# No bounds but the machine's.
UNBOUNDED = Bounds()


def machine_bytes(groups: Path = _CONTROL_GROUPS, own: str | None = None) -> int:
    """Returns how much memory the processes of this machine, or of this process's control groups, may use together.

    Args:
        groups: The folder of control groups.
        own: The one of this process, as in /proc/self/cgroup; None to read it there.
    """
    bounds = [_PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):
        lines = (Path("/proc/self/cgroup").read_text() if own is None else own).splitlines()
        # Version 2: one hierarchy, "0::/path". In a container the path may be one outside of it, and the bound is the root's.
        inner = next((line[4:] for line in lines if line.startswith("0::/")), "")
        for folder in (groups / inner, *(groups / inner).parents):
            with contextlib.suppress(OSError, ValueError):
                bounds.append(int((folder / "memory.max").read_text()))
    return min(bounds)


def all_workers_bytes() -> int:
    """Returns how much of this machine's memory all its workers may use together."""
    return int(_SHARE * machine_bytes())


class Watch:
    """Checks one worker's usage."""

    def __init__(self, pid: int, folder: Path, bounds: Bounds, *, may_fork: bool) -> None:
        """Makes a watch, without a check.

        Args:
            pid: The worker's process, which leads its session.
            folder: The worker's own folder.
            bounds: The worker's bounds.
            may_fork: Whether the worker can start processes, which count as its own.
        """
        self._pid, self._folder, self._bounds, self._may_fork = pid, folder, bounds, may_fork
        self._due_s = 0.0

    def over(self) -> str:
        """Returns which bound the worker exceeds, to follow its name in a message; "" if none, or if no check is due."""
        if time.monotonic() < self._due_s:
            return ""
        self._due_s = time.monotonic() + LOOK_S
        pids = self._members() if self._may_fork else [self._pid]
        stats = [stat for stat in map(_stat, pids) if stat]
        num_tasks = sum(int(stat[_NUM_THREADS]) for stat in stats)
        if num_tasks > self._bounds.tasks:
            return f"started {num_tasks:,} processes and threads, and may have {self._bounds.tasks:,}"
        most = self._bounds.memory_bytes
        if most is not None and sum(int(stat[_RSS]) for stat in stats) * _PAGE_BYTES > most:
            used = self._rarely(lambda: sum(map(_own_bytes, pids)))
            if used > most:
                return f"used {shown(used)} of memory, and may use {shown(most)} (--memory)"
        return self._rarely(self._over_disk)

    def _rarely(self, look: Callable[[], _Found]) -> _Found:
        """Runs a check that may take long, and delays the next one accordingly."""
        began_s = time.monotonic()
        found = look()
        self._due_s = max(self._due_s, began_s + _RARELY * (time.monotonic() - began_s))
        return found

    def _over_disk(self) -> str:
        most = self._bounds.disk_bytes
        if most is None:
            return ""
        used, num_files = _disk(self._folder)
        if num_files > _MAX_FILES:
            return f"wrote more than {_MAX_FILES:,} files"
        return f"used {shown(used)} of disk, and may use {shown(most)} (--disk)" if used > most else ""

    def _members(self) -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        session = str(self._pid)
        members = (pid for pid in pids if (stat := _stat(pid)) and stat[_SESSION] == session)
        # Enough to exceed the bound; there may be many more.
        return list(itertools.islice(members, self._bounds.tasks + 1))


def _stat(pid: int) -> list[str]:
    """Returns the fields after a process's name; [] if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []


def _own_bytes(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        sizes = [line.split() for line in file if line.startswith((*_OWN, "Pss:"))]
        own = [int(size[1]) for size in sizes if size[0] in _OWN]
        # Linux before 5.2 has only the sum.
        return 1024 * (sum(own) if own else sum(int(size[1]) for size in sizes))
    return 0


def _disk(folder: Path) -> tuple[int, int]:
    """Returns the bytes and the number of files below a folder; stops counting above `_MAX_FILES`."""
    num_bytes = num_files = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                num_bytes += 512 * os.lstat(os.path.join(directory, name)).st_blocks
        num_files += 1 + len(names)
        if num_files > _MAX_FILES:
            break
    return num_bytes, num_files


def shown(num_bytes: int) -> str:
    """Returns a size as people read it."""
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.2f} GB"
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.0f} kB"
