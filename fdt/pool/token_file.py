"""Keeps the tokens of a pool's persons in a file, with each token's hash, its person's name and the time when it expires.

`fdt token` writes the file. The pool reads it again after each change, so a new or revoked token needs no restart. A token is
shown once, when it is made. The file holds only hashes, so reading it gives no access to the pool.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fdt.base import log, user_folder
from fdt.errors import UsageError

_VERSION = 1
# Enough for about 5,000 persons. The file is read during a call, which a larger one would delay.
_MAX_BYTES = 1 << 20
# No colon, so that no name looks like the address of a connection.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_HASH = re.compile(r"[0-9a-f]{64}")
# The name in logs and lists of the holder of the pool's own token.
OPERATOR = "operator"


@dataclasses.dataclass(frozen=True)
class PersonToken:
    """A person's token.

    Attributes:
        name: The person's name.
        sha256: The token's SHA-256 in hex. It has no salt: a token is random, so no table of hashes contains it.
        added_s: When it was made, in seconds since the epoch.
        expires_s: When it expires, in seconds since the epoch; None for never.
    """

    name: str
    sha256: str
    added_s: float
    expires_s: float | None = None

    def is_expired(self, now_s: float) -> bool:
        """Whether the token is no longer valid."""
        return self.expires_s is not None and self.expires_s <= now_s


def hashed(token: bytes) -> str:
    """Returns a token's hash. Tokens are looked up by hash, so that the time of a comparison reveals nothing about them."""
    return hashlib.sha256(token).hexdigest()


# ---- the file -------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[PersonToken]:
    """Returns the tokens in a file; none if the file does not exist.

    Raises:
        UsageError: Other users may open the file, or it is damaged.
    """
    try:
        with open(path, "rb", opener=_no_link) as file:
            complaint = user_folder.file_complaint(file.fileno(), path)
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read the tokens of persons: {error}. Expected a plain file, no link") from error
    if complaint is not None:
        raise UsageError(f"other users could give themselves access through the file of tokens: {complaint}")
    try:
        return _parsed(raw)
    except (ValueError, TypeError, KeyError, UsageError) as error:
        raise UsageError(
            f"the file of tokens is damaged ({error}). Expected what `fdt token add` writes; or delete it and add all persons "
            f"again. Received: {path}"
        ) from error


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _parsed(raw: bytes) -> list[PersonToken]:
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES:,} bytes")
    tables = json.loads(raw)
    if tables["version"] != _VERSION:
        raise ValueError(f"version {tables['version']}, not {_VERSION}")
    tokens = [PersonToken(**each) for each in tables["tokens"]]
    for token in tokens:
        check_name(token.name)
        times = (token.added_s, 0.0 if token.expires_s is None else token.expires_s)
        are_times = all(type(each) in (int, float) and 0 <= each < float("inf") for each in times)
        if not _HASH.fullmatch(token.sha256) or not are_times:
            raise ValueError(f"the token of {token.name} is malformed")
    if len({token.name for token in tokens}) < len(tokens):
        raise ValueError("a name comes twice")
    return tokens


def check_name(name: str) -> None:
    """Refuses an invalid name of a person.

    Raises:
        UsageError: The name has other characters, is too long, or is the operator's.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == OPERATOR:
        raise UsageError(
            f"expected a name of up to 63 letters, digits, dots, dashes, @ and underscores, other than {OPERATOR!r}. Received: "
            f"{name!r:.80}"
        )


def add(path: Path, name: str, now_s: float, lasts_s: float | None = None) -> str:
    """Makes a token for a person, and adds its hash to a file; returns the token.

    Args:
        path: The file; made if missing.
        name: The person.
        now_s: The time in seconds since the epoch.
        lasts_s: For how long the token is valid; None for ever.

    Raises:
        UsageError: The person has a valid token, or the file cannot be used.
    """
    check_name(name)
    token = secrets.token_hex(32)
    with _changing(path) as tokens:
        if any(each.name == name and not each.is_expired(now_s) for each in tokens):
            raise UsageError(
                f"{name} has a token. `fdt token revoke {name}` ends it, and the jobs that it has started; then add a new one"
            )
        tokens[:] = [each for each in tokens if each.name != name]
        expires_s = None if lasts_s is None else now_s + lasts_s
        tokens.append(PersonToken(name, hashed(token.encode()), now_s, expires_s))
    return token


def revoke(path: Path, name: str) -> None:
    """Deletes a person's token from a file.

    Raises:
        UsageError: The person has no token, or the file cannot be used.
    """
    with _changing(path) as tokens:
        left = [each for each in tokens if each.name != name]
        if len(left) == len(tokens):
            raise UsageError(f"{name} has no token; `fdt token list` shows who has. Received: {path}")
        tokens[:] = left


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[list[PersonToken]]:
    """Yields the tokens of a file, and writes them back, under a lock against other processes that change the file."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            tokens = read(path)
            yield tokens
            _write(path, tokens)
        finally:
            os.close(folder)
    except OSError as error:
        raise UsageError(f"cannot change the tokens of persons: {error}. Received: {path}") from error


def _write(path: Path, tokens: Sequence[PersonToken]) -> None:
    text = json.dumps({"version": _VERSION, "tokens": [dataclasses.asdict(token) for token in tokens]}, indent=1) + "\n"
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        # A revoked token must not become valid again because the machine fails.
        os.fsync(descriptor)
    # The rename is atomic, so a pool never reads a partly written file.
    os.replace(partial, path)


# ---- the pool's view ------------------------------------------------------------------------------------------------


class TokenFile:
    """The persons' tokens that a pool accepts; its methods may be called from any thread."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[list[str], list[str]], None] = lambda added, gone: None,
    ) -> None:
        """Reads the file, if it exists.

        Args:
            path: The file.
            clock: Returns the time in seconds since the epoch.
            on_change: Called when the file has changed, with the names of the persons of new and of deleted tokens.

        Raises:
            UsageError: Other users may open the file, or it is damaged.
        """
        self.path, self._clock, self._on_change = path, clock, on_change
        self._lock = threading.Lock()
        self._seen = self._status()
        self._by_hash = {token.sha256: token for token in read(path)}

    def names(self) -> list[str]:
        """Returns the persons whose tokens are valid."""
        now_s = self._clock()
        return [token.name for token in self._current().values() if not token.is_expired(now_s)]

    def find(self, sha256: str) -> PersonToken | None:
        """Returns the token with a hash, which may have expired; None if there is none, or it was revoked."""
        return self._current().get(sha256)

    def is_expired(self, token: PersonToken) -> bool:
        """Whether a token is no longer valid."""
        return token.is_expired(self._clock())

    def _current(self) -> dict[str, PersonToken]:
        with self._lock:
            status = self._status()
            if status == self._seen:
                return self._by_hash
            self._seen = status
            try:
                found = {token.sha256: token for token in read(self.path)}
            except UsageError as error:
                # With an empty table, a mistake of the operator in the file would end the jobs of all persons.
                log.notice(f"{error}; until that is corrected, the tokens that the file held before remain valid")
                return self._by_hash
            before, self._by_hash = self._by_hash, found
        added, gone = (
            sorted(token.name for sha256, token in one.items() if sha256 not in other)
            for one, other in ((found, before), (before, found))
        )
        self._on_change(added, gone)
        return found

    def _status(self) -> tuple[int, ...] | None:
        """Returns values that change when the file does; None if there is no such file or it is not accessible."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
