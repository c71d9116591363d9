"""Finds and makes folders that only this user can open, and checks files: data kept between runs, and what the user has set."""

import os
import platform
import stat
from pathlib import Path


def state_folder() -> Path | None:
    """Returns the folder for this project's and machine's data in the user's state folder ($XDG_STATE_HOME); None without
    a home.

    Homes may be shared between machines, so the machine's name is part of it.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    base = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".local/state")
    return Path(base) / "fdt" / (platform.node() or "here") if os.path.isabs(base) else None


def config_folder() -> Path:
    """Returns where this user says how our programs are to be ($XDG_CONFIG_HOME)."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.config")) / "fdt"


def make(folder: Path) -> None:
    """Makes a folder and its parents, unless they exist, with access for this user only.

    Raises:
        OSError: A folder cannot be made.
    """
    if not folder.parent.exists():
        make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def complaint(folder: Path) -> str | None:
    """Returns why a folder is not private to this user, or None; links are not followed."""
    try:
        status = os.lstat(folder)
    except OSError as error:
        return str(error)
    return _complaint(status, folder, None if stat.S_ISDIR(status.st_mode) else "a folder", "700")


def file_complaint(descriptor: int, path: Path) -> str | None:
    """Returns why an open file is not private to this user, or None.

    Args:
        descriptor: Of the file.
        path: Its name, for the message.
    """
    status = os.fstat(descriptor)
    return _complaint(status, path, None if stat.S_ISREG(status.st_mode) else "a plain file", "600")


def _complaint(status: os.stat_result, path: Path, missing: str | None, mode: str) -> str | None:
    if missing:
        return f"{path} is not {missing}"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if status.st_mode & 0o077:
        return f"others may open {path}: mend it with chmod {mode}"
    return None
