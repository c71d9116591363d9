"""The rendezvous through which ranks meet."""

import contextlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from fdt.errors import UsageError
from fdt.runtime import Place, Placement
from hfdt.launch import ADDRESS, HorovodLauncher, HorovodRendezvous


@pytest.fixture
def rendezvous() -> Iterator[HorovodRendezvous]:
    opened = HorovodLauncher().rendezvous(Placement.own(3))
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
    assert rendezvous._server.address[0] == "127.0.0.1"


def test_the_operators_cycle_time_is_kept(rendezvous: HorovodRendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous.environment(0)["HOROVOD_CYCLE_TIME"] == "0.1"
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    assert "HOROVOD_CYCLE_TIME" not in rendezvous.environment(0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ps": "2"}, "--ps goes with --mode async. Received: --mode sync --ps 2"),
        ({"wire": "fp8"}, "--wire must be one of exact, fp16. Received: --wire fp8"),
    ],
)
def test_an_option_that_means_nothing_here_is_refused(options: dict[str, str], expected: str) -> None:
    HorovodLauncher().check({"wire": "fp16"})
    with pytest.raises(UsageError) as caught:
        HorovodLauncher().check(options)
    assert str(caught.value) == expected


# ---- several hosts --------------------------------------------------------------------------------------------------

# Two ranks on the pool's own machine, three on another. Every 127.x.y.z is this machine, so they stand in for hosts.
OWN, OTHER = Place("", "127.0.0.1", "eth0"), Place("host-1", "127.0.0.9", "eth7")


@pytest.fixture
def over_hosts() -> Iterator[HorovodRendezvous]:
    opened = HorovodLauncher().rendezvous(Placement((OWN, OWN, OTHER, OTHER, OTHER), OWN))
    yield opened
    opened.close()


def test_numbers_over_hosts(over_hosts: HorovodRendezvous) -> None:
    kinds = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    environments = [over_hosts.environment(rank) for rank in range(5)]
    assert [tuple(int(each[f"HOROVOD_{kind}"]) for kind in kinds) for each in environments] == [
        (0, 5, 0, 2, 0, 2),
        (1, 5, 1, 2, 0, 2),
        (2, 5, 0, 3, 1, 2),
        (3, 5, 1, 3, 1, 2),
        (4, 5, 2, 3, 0, 1),
    ]
    assert [each["HOROVOD_GLOO_IFACE"] for each in environments] == ["eth0"] * 2 + ["eth7"] * 3
    assert [each[ADDRESS] for each in environments] == ["127.0.0.1"] * 2 + ["127.0.0.9"] * 3
    assert [each["HOROVOD_HOSTNAME"] for each in environments] == ["pool"] * 2 + ["host-1"] * 3


def test_loopback_is_enough_on_one_host() -> None:
    pool = Place("", "127.0.0.5", "eth0")
    for workers, address in (((pool, pool), "127.0.0.1"), ((OTHER, OTHER), "127.0.0.5")):
        rendezvous = HorovodLauncher().rendezvous(Placement(workers, pool))
        try:
            environment = rendezvous.environment(1)
            assert (environment["HOROVOD_GLOO_IFACE"], environment[ADDRESS]) == ("lo", "127.0.0.1")
            assert environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == address
            assert rendezvous._server.address[0] == address
        finally:
            rendezvous.close()


def test_only_the_jobs_hosts_are_answered(over_hosts: HorovodRendezvous) -> None:
    port = int(over_hosts.environment(0)["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    def ask(source: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(source, 0))
        with contextlib.closing(connection):
            connection.request("GET", "/scope/key")
            return connection.getresponse().status

    assert ask("127.0.0.1") == ask("127.0.0.9") == 404
    with pytest.raises(ConnectionError):
        ask("127.0.0.10")


def test_a_value_has_a_limit(rendezvous: HorovodRendezvous) -> None:
    with pytest.raises(urllib.error.HTTPError, match="413"):
        _call(rendezvous, "PUT", "0", bytes(2 << 20))
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _call(rendezvous, "GET", "0")
