"""A pool with a certificate: who gets in, and what the others are told."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.base import interpreter
from fdt.base.config import Credentials, ServeConfig, Timing
from fdt.errors import AccessError, UsageError
from fdt.pool.server import Server
from fdt.transport import rpc
from tests.helpers.certificates import certificate
from tests.helpers.processes import run
from tests.helpers.toy_engine import ToyLauncher

TIMING = Timing(connect_s=5.0)
TOKEN = "a token"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def address(pair: tuple[Path, Path]) -> Iterator[str]:
    config = ServeConfig(
        listen="127.0.0.1:0", num_workers=1, token=TOKEN, tls_cert=pair[0], tls_key=pair[1], timing=TIMING
    )
    server = Server(config, {"sync": ToyLauncher()})
    yield server.start()
    server.stop()


def test_right_credentials(address: str, pair: tuple[Path, Path]) -> None:
    rpc.connect(address, Credentials(TOKEN, pair[0]), TIMING).close()


def test_wrong_token(address: str, pair: tuple[Path, Path]) -> None:
    with pytest.raises(AccessError, match="--token-file"):
        rpc.connect(address, Credentials("another", pair[0]), TIMING)


def test_no_tls(address: str) -> None:
    with pytest.raises(AccessError, match="--tls-ca"):
        rpc.connect(address, Credentials(TOKEN), TIMING)


def test_another_authority(address: str, tmp_path: Path) -> None:
    other, _ = certificate(tmp_path / "other")
    with pytest.raises(AccessError, match="authority"):
        rpc.connect(address, Credentials(TOKEN, other), TIMING)


@pytest.mark.parametrize(("days_ahead", "words"), [(5, "is not valid yet"), (-5, "is not valid any more")])
def test_clocks_apart(tmp_path: Path, days_ahead: int, words: str) -> None:
    cert, key = certificate(tmp_path / "tls", days_ahead=days_ahead)
    config = ServeConfig(listen="127.0.0.1:0", num_workers=1, token=TOKEN, tls_cert=cert, tls_key=key, timing=TIMING)
    server = Server(config, {"sync": ToyLauncher()})
    try:
        with pytest.raises(AccessError, match=f"{words} by this machine's clock"):
            rpc.connect(server.start(), Credentials(TOKEN, cert), TIMING)
    finally:
        server.stop()


def test_tls_to_a_pool_without(pair: tuple[Path, Path]) -> None:
    server = Server(ServeConfig(listen="127.0.0.1:0", num_workers=1, timing=TIMING), {"sync": ToyLauncher()})
    try:
        with pytest.raises(AccessError, match="--tls-cert"):
            rpc.connect(server.start(), Credentials(TOKEN, pair[0]), TIMING)
    finally:
        server.stop()


class Listener:
    """A port that keeps the first bytes that somebody sends to it; a context manager."""

    def __enter__(self) -> "Listener":
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.heard = queue.SimpleQueue[bytes]()
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._socket.accept()[0] as said:
                    said.sendall(_SETTINGS)
                    text = b""
                    while len(text) < 500 and (more := said.recv(4096)):
                        text += more
                    self.heard.put(text)


# A server's first frame of HTTP/2: a client sends its call when it has come.
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("tls_ca", [None, "its own"])
@pytest.mark.parametrize(
    ("target", "behind", "is_plain"),
    [
        ("127.0.0.1:{}", None, True),
        ("localhost:{}", None, True),
        # A name of no loopback, which leads there.
        ("ipv4:127.0.0.1:{}", None, False),
        # A way to a pool on another machine begins on this one.
        ("127.0.0.1:{}", "10.0.0.1:7077", False),
        ("127.0.0.1:{}", "pool.example:7077", False),
        ("127.0.0.1:{}", "127.0.0.1:7077", True),
    ],
)
def test_no_token_leaves_the_machine_in_the_clear(
    target: str, behind: str | None, is_plain: bool, tls_ca: str | None, pair: tuple[Path, Path]
) -> None:
    token = "a-secret-that-is-long-enough-to-be-found" * 10
    credentials = Credentials(token, None if tls_ca is None else pair[0])
    with Listener() as listener, rpc.open_channel(target.format(listener.port), credentials, TIMING, behind) as channel:
        call = channel.unary_unary("/fdt.v1.Pool/Describe").future(b"", timeout=5.0)
        said = listener.heard.get(timeout=5.0)
        call.cancel()
    if is_plain and tls_ca is None:
        assert said.startswith(b"PRI * HTTP/2") and token[:20].encode() in said, "it is seen here if it is sent"
    else:
        # A handshake of TLS.
        assert said.startswith(b"\x16\x03") and token[:20].encode() not in said


_BY_THE_SYSTEMS_AUTHORITIES = """
import sys
from fdt.base.config import Credentials, Timing
from fdt.transport import rpc
with rpc.open_channel(sys.argv[1], Credentials("a token"), Timing(), "pool.example:7077") as channel:
    print(channel.unary_unary(f"/{rpc.HEALTH}/Check")(b"", timeout=20, wait_for_ready=True))
"""


def test_the_systems_authorities_vouch_for_a_pool_elsewhere(tmp_path: Path) -> None:
    """gRPC reads them once in a process, from where a variable says."""
    cert, key = certificate(tmp_path / "tls", names=["pool.example"])
    config = ServeConfig(listen="127.0.0.1:0", num_workers=1, token=TOKEN, tls_cert=cert, tls_key=key, timing=TIMING)
    server = Server(config, {"sync": ToyLauncher()})
    try:
        command = [*interpreter.of_code(_BY_THE_SYSTEMS_AUTHORITIES), server.start()]
        done = run(command, limit_s=60, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(cert))
        done.expect(0)
    finally:
        server.stop()


def test_no_such_authority_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="authority"):
        rpc.connect("127.0.0.1:1", Credentials(TOKEN, tmp_path / "none.pem"), TIMING)


def test_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    config = ServeConfig(listen="127.0.0.1:0", token=TOKEN, tls_cert=tmp_path / "c", tls_key=tmp_path / "k")
    server = Server(config, {"sync": ToyLauncher()})
    with pytest.raises(UsageError, match="Cannot listen"):
        server.start()
    server.stop()
