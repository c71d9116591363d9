"""A pool with a certificate: who gets in, and what the others are told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.base.config import Credentials, ServeConfig, Timing
from fdt.errors import AccessError, UsageError
from fdt.pool.server import Server
from fdt.transport import rpc
from tests.helpers.certificates import certificate
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


def test_no_such_authority_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="authority"):
        rpc.connect("127.0.0.1:1", Credentials(TOKEN, tmp_path / "none.pem"), TIMING)


def test_certificate_that_cannot_be_read(tmp_path: Path) -> None:
    config = ServeConfig(listen="127.0.0.1:0", token=TOKEN, tls_cert=tmp_path / "c", tls_key=tmp_path / "k")
    server = Server(config, {"sync": ToyLauncher()})
    with pytest.raises(UsageError, match="Cannot listen"):
        server.start()
    server.stop()
