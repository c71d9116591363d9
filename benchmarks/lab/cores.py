"""Gives each host of a laboratory its own part of the machine's cores, by the kernel's quotas of processor time."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

_PERIOD_US = 100_000
# Control groups, version 1 or 2.
_FIRST, _SECOND = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
ROOT = _FIRST if _FIRST.is_dir() else _SECOND
# A group can be removed once its last process is gone.
_GONE_S = 10.0


def make(name: str, cores: float) -> None:
    """Makes a group whose processes together get so much time, in seconds a second."""
    group = ROOT / name
    group.mkdir()
    quota = str(int(cores * _PERIOD_US))
    if ROOT == _FIRST:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(quota)
    else:
        (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")


def within(name: str, command: Sequence[str]) -> list[str]:
    """Returns the command that runs another in a group, as the same process."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(ROOT / name / "cgroup.procs"), *command]


def remove(name: str) -> None:
    """Removes a group, if it is there."""
    deadline_s = time.monotonic() + _GONE_S
    while (ROOT / name).is_dir():
        with contextlib.suppress(OSError):
            os.rmdir(ROOT / name)
            return
        if time.monotonic() > deadline_s:
            return
        time.sleep(0.1)
