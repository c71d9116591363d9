"""What every port of a pool that speaks HTTP does with connections that say nothing, or too little."""

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdt.base.limits import DEFAULT, Limits
from fdt.pool import metrics
from fdt.pool.observations import JobCurves
from fdt.pool.page.app import PoolActions
from fdt.pool.page.feed import Feed
from fdt.pool.page.server import PageServer
from fdt.pool.snapshot import Snapshot

LIMIT_S = 30.0
_FOR_EVER_S = 1e6
_MOST = 3
_REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _snapshot() -> Snapshot:
    return Snapshot([], [])


def _page(limits: Limits) -> PageServer:
    feed = Feed(_snapshot, lambda _: JobCurves(), 0.0)
    return PageServer("127.0.0.1:0", feed, PoolActions(lambda _: "", lambda _: []), limits)


_SERVERS: dict[str, Callable[[Limits], Any]] = {
    "page": _page,
    "metrics": lambda limits: metrics.serve("127.0.0.1:0", _snapshot, limits),
}


@contextlib.contextmanager
def _served(name: str, silent_s: float) -> Iterator[Callable[[], socket.socket]]:
    """Yields what connects to a server that takes `_MOST` connections."""
    limits = dataclasses.replace(DEFAULT, page_connections=_MOST, metrics_connections=_MOST, silent_http_s=silent_s)
    server = _SERVERS[name](limits)
    host, _, port = server.address.rpartition(":")
    with contextlib.ExitStack() as opened:
        opened.callback(server.close)
        yield lambda: opened.enter_context(socket.create_connection((host, int(port)), LIMIT_S))


def _ends(connection: socket.socket) -> bool:
    """Whether nothing comes but the end."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("name", _SERVERS)
def test_silent_connections_take_no_more_than_their_bound(name: str) -> None:
    with _served(name, _FOR_EVER_S) as connect:
        kept = [connect() for _ in range(_MOST)]
        assert all(_ends(connect()) for _ in range(5 * _MOST)), "whoever comes when it is full is hung up on"
        for connection in kept:
            connection.sendall(_REQUEST)
            assert connection.recv(12).startswith(b"HTTP/1."), "those that were there are answered"
            connection.close()


@pytest.mark.parametrize("name", _SERVERS)
def test_a_silent_connection_makes_room(name: str) -> None:
    with _served(name, 0.05) as connect:
        for _ in range(2):
            for connection in [connect() for _ in range(_MOST)]:
                assert _ends(connection)
        served = b""
        end_s = time.monotonic() + LIMIT_S
        while not served and time.monotonic() < end_s:
            # The end of the last one may not have been noticed.
            with contextlib.suppress(ConnectionError):
                asking = connect()
                asking.sendall(_REQUEST)
                served = asking.recv(12)
        assert served.startswith(b"HTTP/1.")


@pytest.mark.parametrize("begun", [b"", _REQUEST], ids=["first", "second"])
@pytest.mark.parametrize("name", _SERVERS)
def test_a_request_that_comes_byte_by_byte_is_not_waited_for(name: str, begun: bytes) -> None:
    with _served(name, 0.2) as connect:
        connection = connect()
        connection.sendall(begun)
        connection.settimeout(0.01)
        received, end_s = b"?", time.monotonic() + LIMIT_S
        with contextlib.suppress(ConnectionError):
            while received and time.monotonic() < end_s:
                with contextlib.suppress(TimeoutError):
                    received = connection.recv(4096)
                    continue
                connection.sendall(b"x")
        assert time.monotonic() < end_s
