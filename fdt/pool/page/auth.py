"""Authorises browsers for the page: a browser exchanges a one-time code for a cookie.

The page can do as much as a client with the pool's token, so only such a client can authorise a browser. A link contains a code
that works once; a client with the pool's token gets further links (`fdt page`). Two checks stop pages of other sites in the
same browser: host names other than loopback's are refused (another site's name may resolve to 127.0.0.1), and requests that
change something must come from the page itself.
"""

import hmac
import secrets
import threading
import time
from collections.abc import Callable

# Names by which a browser reaches loopback, directly or through a tunnel that ends there.
HOSTS = ("127.0.0.1", "localhost", "[::1]")
# For how long an unused code is valid, and the most codes.
CODE_S, MAX_CODES = 600.0, 16
# For how long a cookie is valid, and the most cookies: the oldest is dropped.
COOKIE_S, MAX_COOKIES = 24 * 3600.0, 64


class BrowserCodes:
    """The codes and cookies of one page, in memory: they become invalid when the pool ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins without codes and cookies.

        Args:
            clock: Returns seconds.
        """
        self._clock, self._lock = clock, threading.Lock()
        # What was issued, and when it expires; the oldest first.
        self._codes: dict[str, float] = {}
        self._cookies: dict[str, float] = {}

    def code(self) -> str:
        """Returns a new code of 256 random bits; above `MAX_CODES` the oldest codes become invalid."""
        with self._lock:
            return _added(self._codes, self._clock() + CODE_S, MAX_CODES)

    def enter(self, code: str) -> str | None:
        """Redeems a code, which works once; returns a cookie's value, or None if the code is unknown or too old."""
        with self._lock:
            known = _find(self._codes, code)
            if known is None or self._codes.pop(known) < self._clock():
                return None
            return _added(self._cookies, self._clock() + COOKIE_S, MAX_COOKIES)

    def knows(self, cookie: str) -> bool:
        """Whether a cookie's value was issued here and is not too old."""
        with self._lock:
            known = _find(self._cookies, cookie)
            return known is not None and self._cookies[known] >= self._clock()


def is_own_host(host: str) -> bool:
    """Whether a Host header names loopback, with any port."""
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
    """Returns the entry that equals a text, or None; the time that this takes reveals nothing about the entries."""
    found = None
    for known in kept:
        if hmac.compare_digest(known.encode(), given.encode()):
            found = known
    return found
