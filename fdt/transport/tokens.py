"""Shares the tokens of this user's pools with this user's clients, through files that only this user reads.

Every user of a machine can reach a pool on its loopback, so the pool makes a token by itself, as Jupyter does. The folder is
the user's runtime folder ($XDG_RUNTIME_DIR), which is local to the machine and ends with the session; if there is none, the
user's state folder. Not the temporary folder: another user could take the name there first.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from fdt.base import user_folder
from fdt.errors import UsageError

_LOCAL = ("localhost", "127.0.0.1", "::1")
# The most bytes that are read from a token's file; tokens that a pool makes are shorter.
_MAX_BYTES = 4096
# A pool answers thousands of guesses a second, so a token must be too long to guess.
MIN_CHARACTERS = 16


def is_local(address: str) -> bool:
    """Returns whether only users of this machine can reach the address."""
    import ipaddress

    if address.startswith("unix:"):
        return True
    host = parts(address)[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def published(address: str, token: str) -> Iterator[Path]:
    """Publishes a pool's token for this user's clients within the context; yields the file.

    Args:
        address: The address on which the pool listens.
        token: Its token. It overwrites an earlier pool's token for this address.

    Raises:
        UsageError: There is no folder that only this user can read.
    """
    path = _writable() / _name(*parts(address))
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    os.replace(partial, path)
    try:
        yield path
    finally:
        # Another pool of this user may have taken over the address.
        with contextlib.suppress(OSError):
            if _read(path) == token:
                path.unlink()


def find(address: str) -> str | None:
    """Returns the token that this user's pool has published for an address; None if there is none.

    Names of loopback are equivalent: a pool on 127.0.0.1 is found as localhost.
    """
    if not is_local(address):
        return None
    host, port = parts(address)
    hosts = [host, *_LOCAL] if host == "localhost" else [host, "localhost"]
    for folder in _folders():
        if user_folder.complaint(folder) is None:
            for name in dict.fromkeys(_name(each, port) for each in hosts):
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    return _read(folder / name)
    return None


def parts(address: str) -> tuple[str, str]:
    """Returns an address's host and port, in a form that fits into file names."""
    if address.startswith("unix:"):
        return "unix", hashlib.sha256(os.fsencode(address)).hexdigest()[:32]
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _name(host: str, port: str) -> str:
    return f"{host}-{port}.token"


def _folders() -> list[Path]:
    """Returns the folders to search for tokens, the preferred one first.

    The state folder is searched even if there is a runtime folder, since a pool that was started as a service had no session
    and so no runtime folder.
    """
    runtime, state = os.environ.get("XDG_RUNTIME_DIR"), user_folder.state_folder()
    folders = [Path(runtime) / "fdt"] if runtime and os.path.isabs(runtime) else []
    return folders + ([state] if state is not None else [])


def _writable() -> Path:
    complaints = []
    for folder in _folders():
        with contextlib.suppress(OSError):
            user_folder.make(folder)
        complaint = user_folder.complaint(folder)
        if complaint is None:
            return folder
        complaints.append(complaint)
    raise UsageError(
        "There is no place for the token that the pool makes for this user's clients. Expected a folder that only this user "
        "can open; or give a token with --token-file FILE, or choose --no-token, which lets every local user in. Received: "
        f"{'; '.join(complaints) or 'neither XDG_RUNTIME_DIR nor HOME'}"
    )


def _read(path: Path) -> str | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="ascii") as file:
        token = file.read(_MAX_BYTES).strip()
    return token if token and token.isprintable() else None
