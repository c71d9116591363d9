"""`fdt doctor --server`: what of a pool can be seen from outside, and what is said of it."""

import argparse
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdt.base.config import ServeConfig
from fdt.cli import doctor, main
from fdt.cli.pool_diagnosis import Verdict, look
from fdt.pool.server import Server
from tests.helpers.certificates import certificate
from tests.helpers.pool import write_token
from tests.helpers.toy_engine import ROOT, ToyLauncher
from tests.integration.test_pool import TIMING

TOKEN = "a token for these tests"
Look = Callable[..., dict[str, Verdict]]


@pytest.fixture(scope="module", autouse=True)
def _import_toy_engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serves a pool by its configuration; returns its port."""
    servers: list[Server] = []

    def start(**config: object) -> str:
        config = {"listen": "127.0.0.1:0", "num_workers": 1, "timing": TIMING, "token": TOKEN, **config}
        servers.append(Server(ServeConfig(**config), {"sync": ToyLauncher()}))
        return servers[-1].start().rpartition(":")[2]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def seen(tmp_path: Path) -> Look:
    """Looks at a pool; returns the verdicts by name and what was found."""

    def look_at(address: str, ca: Path | None = None, token: str | None = TOKEN) -> dict[str, Verdict]:
        file = write_token(tmp_path / "token", token) if token else None
        given = argparse.Namespace(server=address, token_file=file, tls_ca=ca)
        return {f"{verdict.name}: {verdict.found}": verdict for verdict in look(given, TIMING)}

    return look_at


def found(verdicts: dict[str, Verdict], beginning: str) -> Verdict:
    matching = [verdict for text, verdict in verdicts.items() if text.startswith(beginning)]
    assert len(matching) == 1, (beginning, list(verdicts))
    return matching[0]


def test_a_pool_that_is_well(serve: Callable[..., str], seen: Look, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "tls")
    port = serve(tls_cert=cert, tls_key=key)
    verdicts = seen(f"127.0.0.1:{port}", cert)
    ends = found(verdicts, "its end: until")
    assert "(2 days)" in ends.found and ends.remedy and not ends.broken, "the test's certificate is about to end"
    assert [verdict for verdict in verdicts.values() if verdict.remedy and verdict is not ends] == []
    assert found(verdicts, "tls: TLS 1.")
    assert found(verdicts, "certificate: for localhost, 127.0.0.1; self-signed")
    for given in ("without a token", "with a wrong token"):
        assert "all" in found(verdicts, f"calls: {given}").found
    assert found(verdicts, "access: the token is accepted")
    assert found(verdicts, "workers").found.endswith("of 1 workers free, sync")
    assert found(verdicts, f"listens: 127.0.0.1:{port}")


def test_a_certificate_for_another_name(serve: Callable[..., str], seen: Look, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "tls", names=["pool.example"], addresses=["192.0.2.1"])
    verdicts = seen(f"127.0.0.1:{serve(tls_cert=cert, tls_key=key)}", cert)
    assert found(verdicts, "its name").broken and found(verdicts, "access: refused").broken


def test_a_certificate_of_another_authority(serve: Callable[..., str], seen: Look, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path / "tls")
    port = serve(tls_cert=cert, tls_key=key)
    other, _ = certificate(tmp_path / "other")
    assert found(seen(f"127.0.0.1:{port}", other), "calls: without a token: no connection").broken
    assert found(seen(f"127.0.0.1:{port}"), "token: not tried").broken


def test_a_pool_without_a_token(serve: Callable[..., str], seen: Look) -> None:
    verdicts = seen(f"127.0.0.1:{serve(token=None)}", token=None)
    calls = found(verdicts, "calls: without a token")
    assert "methods answer" in calls.found and calls.remedy and "--no-token" in calls.remedy and not calls.broken
    assert found(verdicts, "tls: none; the traffic stays on this machine").remedy is None
    assert not any(verdict.remedy and verdict.broken for verdict in verdicts.values())


def test_a_wrong_token(serve: Callable[..., str], seen: Look) -> None:
    verdicts = seen(f"127.0.0.1:{serve()}", token="another")
    assert found(verdicts, "access: refused").broken
    assert "another" not in str(verdicts)


def test_nobody_there(seen: Look) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        verdicts = seen(f"127.0.0.1:{held.getsockname()[1]}")
    (verdict,) = verdicts.values()
    assert verdict.broken and verdict.remedy and "fdt serve" in verdict.remedy


def test_hosts_are_told(serve: Callable[..., str], seen: Look) -> None:
    from fdt.base.network import trusted

    verdicts = seen(f"127.0.0.1:{serve(network=trusted('lo', None))}")
    assert "in the clear" in found(verdicts, "hosts: takes hosts on 127.0.0.0/8").found


def test_the_exit_status(
    serve: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_PROBES", {})
    port = serve()
    token = write_token(tmp_path / "token", TOKEN)
    assert main.main(["doctor", "--server", f"127.0.0.1:{port}", "--token-file", str(token)]) == 0
    printed = capsys.readouterr().out
    assert "all" in printed and TOKEN not in printed
    token.chmod(0o644)
    assert main.main(["doctor", "--server", f"127.0.0.1:{port}", "--token-file", str(token)]) == 0
    assert f"chmod 600 {token}" in capsys.readouterr().out
    token.write_text("another")
    assert main.main(["doctor", "--server", f"127.0.0.1:{port}", "--token-file", str(token)]) == 1
