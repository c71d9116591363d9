"""Tokens of this user's own pools: written where only this user reads, found there by this user's clients.

A pool on loopback can be reached by every user of its machine, so it makes a token by itself, as Jupyter does. The folder is
the user's runtime folder ($XDG_RUNTIME_DIR), which is of this machine and ends with the session; where there is none, one in
the user's home, by the machine's name, since homes may be shared between machines. Not the temporary folder: whoever comes
first there could keep the name from others.
"""

import contextlib
import hashlib
import os
import platform
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from fdt.errors import UsageError

_LOCAL = ("localhost", "127.0.0.1", "::1")
# No token that we make is longer.
_MAX_BYTES = 4096


def is_local(address: str) -> bool:
    """Returns whether only users of this machine reach the address."""
    import ipaddress

    if address.startswith("unix:"):
        return True
    host = _parts(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def published(address: str, token: str) -> Iterator[Path]:
    """Lets this user's clients find the token of a pool for as long as it lives; yields the file.

    Args:
        address: Where the pool listens.
        token: Its token. What an earlier pool has left under this address is overwritten.

    Raises:
        UsageError: There is no folder that only this user reads.
    """
    path = _writable() / _name(*_parts(address))
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    os.replace(partial, path)
    try:
        yield path
    finally:
        # Another pool of this user's may have taken the address over.
        with contextlib.suppress(OSError):
            if _read(path) == token:
                path.unlink()


def find(address: str) -> str | None:
    """Returns the token that a pool of this user's has left for this address; None if there is none.

    The spellings of loopback lead to each other: a pool on 127.0.0.1 is found as localhost.
    """
    if not is_local(address):
        return None
    host, port = _parts(address)
    hosts = [host, *_LOCAL] if host == "localhost" else [host, "localhost"]
    for folder in _folders():
        if _complaint(folder) is None:
            for name in dict.fromkeys(_name(each, port) for each in hosts):
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    return _read(folder / name)
    return None


def _parts(address: str) -> tuple[str, str]:
    if address.startswith("unix:"):
        return "unix", hashlib.sha256(os.fsencode(address)).hexdigest()[:32]
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _name(host: str, port: str) -> str:
    return f"{host}-{port}.token"


def _folders() -> list[Path]:
    """Returns where tokens may be: a service of the user's may have been started without a session."""
    runtime, home = os.environ.get("XDG_RUNTIME_DIR"), os.path.expanduser("~")
    folders = [Path(runtime) / "fdt"] if runtime and os.path.isabs(runtime) else []
    if os.path.isabs(home):
        folders.append(Path(home) / ".local/state/fdt" / (platform.node() or "here"))
    return folders


def _writable() -> Path:
    complaints = []
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        complaint = _complaint(folder)
        if complaint is None:
            return folder
        complaints.append(complaint)
    raise UsageError(
        "There is no place for the token that the pool makes for this user's clients. Expected a folder that only this user "
        "can open; or give a token with --token-file FILE, or choose --no-token, which lets every local user in. Received: "
        f"{'; '.join(complaints) or 'neither XDG_RUNTIME_DIR nor HOME'}"
    )


def _complaint(folder: Path) -> str | None:
    """Returns what keeps a folder from holding tokens, if something does; links are not followed."""
    try:
        status = os.lstat(folder)
    except OSError as error:
        return str(error)
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if status.st_mode & 0o077:
        return f"others may open {folder}: mend it with chmod 700"
    return None


def _read(path: Path) -> str | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="ascii") as file:
        token = file.read(_MAX_BYTES).strip()
    return token if token and token.isprintable() else None
