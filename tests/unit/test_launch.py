"""The rendezvous through which ranks meet."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from hfdt.launch import HorovodLauncher, HorovodRendezvous


@pytest.fixture
def rendezvous() -> Iterator[HorovodRendezvous]:
    opened = HorovodLauncher().rendezvous(3)
    yield opened
    opened.close()


def _call(rendezvous: HorovodRendezvous, method: str, key: str, value: bytes | None = None) -> bytes:
    environment = rendezvous.environment(0)
    address = f"{environment['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    request = urllib.request.Request(f"http://{address}/scope/{key}", data=value, method=method)
    with urllib.request.urlopen(request, timeout=10) as reply:
        content: bytes = reply.read()
    return content


def test_ranks_differ_only_in_their_rank(rendezvous: HorovodRendezvous) -> None:
    environments = [dict(rendezvous.environment(rank)) for rank in range(3)]
    assert [e.pop("HOROVOD_RANK") for e in environments] == ["0", "1", "2"]
    assert [e.pop("HOROVOD_LOCAL_RANK") for e in environments] == ["0", "1", "2"]
    assert environments[0] == environments[1] == environments[2]
    assert environments[0]["HOROVOD_SIZE"] == "3"


def test_what_one_rank_puts_another_gets(rendezvous: HorovodRendezvous) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _call(rendezvous, "GET", "0")
    _call(rendezvous, "PUT", "0", b"\x00address\xff")
    assert _call(rendezvous, "GET", "0") == b"\x00address\xff"


def test_it_is_bound_to_loopback(rendezvous: HorovodRendezvous) -> None:
    assert rendezvous._server.server_address[0] == "127.0.0.1"


def test_the_operators_cycle_time_is_kept(rendezvous: HorovodRendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous.environment(0)["HOROVOD_CYCLE_TIME"] == "0.1"
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    assert "HOROVOD_CYCLE_TIME" not in rendezvous.environment(0)
