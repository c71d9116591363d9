"""Keeps what was compiled in the user's cache ($XDG_CACHE_HOME), under names that tell its content."""

import contextlib
import os
import stat
from pathlib import Path


def folder(kind: str) -> Path:
    """Returns the folder for one kind of builds, which may not exist."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "fdt" / kind


def is_ours(path: Path) -> bool:
    """Whether a file exists that only this user and root can have written."""
    try:
        each = [os.stat(path), os.stat(path.parent)]
    except OSError:
        return False
    return all(s.st_uid in (0, os.geteuid()) and not s.st_mode & stat.S_IWOTH for s in each)


def can_keep(place: Path) -> bool:
    """Whether files can be kept in a folder; makes it."""
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        return os.access(place, os.W_OK)
    return False


def forget_oldest(place: Path, pattern: str, kept: int) -> None:
    """Removes all files that match but the `kept` newest."""
    by_age = sorted(place.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[kept:]:
        with contextlib.suppress(OSError):
            path.unlink()
