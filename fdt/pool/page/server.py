"""The page's port: a web server in a thread of the pool's control process."""

import socket
import threading

import uvicorn

from fdt.errors import UsageError
from fdt.pool.page.app import PoolActions, application
from fdt.pool.page.auth import BrowserCodes
from fdt.pool.page.feed import Feed
from fdt.pool.page.gate import Gate

# Connections at once; a browser opens up to six.
_MAX_CONNECTIONS = 128
_STOP_S = 5.0


class PageServer:
    """Answers over HTTP until it is closed.

    Attributes:
        address: "host:port".
    """

    def __init__(self, address: str, feed: Feed, actions: PoolActions) -> None:
        """Opens the port, and begins to answer.

        Args:
            address: "host:port" on loopback; port 0 for one that is free.
            feed: What is shown.
            actions: What can be done.

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
        self._doors, self._feed = BrowserCodes(), feed
        gate = Gate(application(feed, actions), self._doors, f"fdt-{port}")
        # No log of requests: the address of the first has a code in it.
        config = uvicorn.Config(
            gate,
            access_log=False,
            log_config=None,
            log_level="error",
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="fdt-page", daemon=True
        )
        self._thread.start()

    def link(self) -> str:
        """Returns an address that lets one browser in, once."""
        return f"http://{self.address}/?code={self._doors.code()}"

    def close(self) -> None:
        """Ends all streams, and closes the port."""
        self._feed.close()
        self._server.should_exit = True
        self._thread.join(_STOP_S)
        self._socket.close()
