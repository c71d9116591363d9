"""Decides which browsers see the page: codes that let one in, and the cookies that they become.

A pool can do whatever its token lets clients do, so its page asks for as much. A link has a code in it that serves once;
whoever has the pool's token gets others (`fdt page`). Against pages of other sites in the same browser: names other than
loopback's are refused (a name of somebody else's that leads to 127.0.0.1), and what changes something must come from the page.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable

# Names by which a browser reaches loopback, also through a tunnel that ends there.
HOSTS = ("127.0.0.1", "localhost", "[::1]")
# For how long a code serves that nobody has used, and how many there may be.
CODE_S, MAX_CODES = 600.0, 16
# For how long a browser stays let in, and how many there may be: the oldest goes.
COOKIE_S, MAX_COOKIES = 24 * 3600.0, 64


class BrowserCodes:
    """Codes and cookies of one page, in memory: they end with the pool."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins with nobody let in.

        Args:
            clock: Seconds.
        """
        self._clock, self._lock = clock, threading.Lock()
        # What was given out, and when it ends; the oldest first.
        self._codes: dict[str, float] = {}
        self._cookies: dict[str, float] = {}

    def code(self) -> str:
        """Returns a new code, 256 random bits; of more than `MAX_CODES` the oldest do not serve any more."""
        with self._lock:
            return _added(self._codes, self._clock() + CODE_S, MAX_CODES)

    def enter(self, code: str) -> str | None:
        """Takes a code, which serves once; returns a cookie's value, or None if it is none of ours or too old."""
        with self._lock:
            known = _find(self._codes, code)
            if known is None or self._codes.pop(known) < self._clock():
                return None
            return _added(self._cookies, self._clock() + COOKIE_S, MAX_COOKIES)

    def knows(self, cookie: str) -> bool:
        """Whether a cookie's value is one that was given out, and not too old."""
        with self._lock:
            known = _find(self._cookies, cookie)
            return known is not None and self._cookies[known] >= self._clock()


def is_own_host(host: str) -> bool:
    """Whether a Host header, with whatever port, names loopback."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    return name.lower() in HOSTS and (not colon or not port or port.isdecimal())


def is_own_origin(origin: str | None, host: str) -> bool:
    """Whether a request comes from a page that was loaded from the host to which it goes."""
    return origin is not None and origin.lower() == f"http://{host.lower()}"


def _added(kept: dict[str, float], until_s: float, limit: int) -> str:
    new = secrets.token_urlsafe(32)
    kept[new] = until_s
    while len(kept) > limit:
        del kept[next(iter(kept))]
    return new


def _find(kept: dict[str, float], given: str) -> str | None:
    """Returns the entry that is the given text, in a time that tells nothing of the others."""
    found = None
    for known in kept:
        if hmac.compare_digest(known.encode(), given.encode()):
            found = known
    return found
