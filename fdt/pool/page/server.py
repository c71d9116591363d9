"""Serves the page: a web server in a thread of the pool's control process."""

import asyncio
import socket
import threading

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fdt.base.limits import DEFAULT, Limits
from fdt.errors import UsageError
from fdt.pool.page.app import PoolActions, application
from fdt.pool.page.auth import BrowserCodes
from fdt.pool.page.feed import Feed
from fdt.pool.page.gate import Gate

_STOP_S = 5.0


def _bounded(limits: Limits) -> type[H11Protocol]:
    """Returns a class of uvicorn's connections that bounds their number and closes those on which no request arrives.

    Uvicorn's own bound only answers requests with 503, so it would not close connections that send none.
    """

    class Connection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()
            if len(self.connections) > limits.page_connections:
                transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Closes the connection unless a complete request arrives in time."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(limits.silent_http_s, self.transport.abort)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Connection


class PageServer:
    """Answers over HTTP until it is closed.

    Attributes:
        address: "host:port".
    """

    def __init__(self, address: str, feed: Feed, actions: PoolActions, limits: Limits = DEFAULT) -> None:
        """Opens the port, and starts to answer.

        Args:
            address: "host:port" on loopback; port 0 for a free port.
            feed: The pool's snapshots.
            actions: The functions that the page may call.
            limits: Bounds of connections.

        Raises:
            UsageError: The port cannot be opened.
        """
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_server(
                (host.strip("[]"), int(port)), family=socket.AF_INET6 if host.startswith("[") else socket.AF_INET
            )
        except OSError as error:
            raise UsageError(f"cannot show the pool's page at {address}: {error.strerror or error}") from error
        port = str(self._socket.getsockname()[1])
        self.address = f"{host}:{port}"
        self._codes, self._feed = BrowserCodes(), feed
        gate = Gate(application(feed, actions), self._codes, f"fdt-{port}")
        # No log of requests: the first request's URL contains a code.
        config = uvicorn.Config(
            gate,
            access_log=False,
            log_config=None,
            log_level="error",
            loop="asyncio",
            http=_bounded(limits),
            ws="none",
            lifespan="off",
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="fdt-page", daemon=True
        )
        self._thread.start()

    def link(self) -> str:
        """Returns a URL that authorises one browser, once."""
        return f"http://{self.address}/?code={self._codes.code()}"

    def close(self) -> None:
        """Ends all streams, and closes the port."""
        self._feed.close()
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._socket.close()
