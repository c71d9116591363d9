"""What Horovod's ranks are told."""

import pytest

from fdt.errors import UsageError
from fdt.worker.runtime import Place, Placement
from hfdt.launch import ADDRESS, HorovodLauncher


def test_ranks_differ_only_in_their_rank() -> None:
    environments = [dict(HorovodLauncher().environment(Placement((Place(),) * 3), rank)) for rank in range(3)]
    assert [e.pop("HOROVOD_RANK") for e in environments] == ["0", "1", "2"]
    assert [e.pop("HOROVOD_LOCAL_RANK") for e in environments] == ["0", "1", "2"]
    assert environments[0] == environments[1] == environments[2]
    assert environments[0]["HOROVOD_SIZE"] == "3"


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


def test_numbers_over_hosts() -> None:
    placement = Placement((OWN, OWN, OTHER, OTHER, OTHER), OWN)
    kinds = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    environments = [HorovodLauncher().environment(placement, rank) for rank in range(5)]
    assert [tuple(int(each[f"HOROVOD_{kind}"]) for kind in kinds) for each in environments] == [
        (0, 5, 0, 2, 0, 2),
        (1, 5, 1, 2, 0, 2),
        (2, 5, 0, 3, 1, 2),
        (3, 5, 1, 3, 1, 2),
        (4, 5, 2, 3, 0, 1),
    ]
    assert [each[ADDRESS] for each in environments] == ["127.0.0.1"] * 2 + ["127.0.0.9"] * 3
    assert [each["HOROVOD_HOSTNAME"] for each in environments] == ["pool"] * 2 + ["host-1"] * 3


def test_loopback_is_enough_on_one_host() -> None:
    pool = Place("", "127.0.0.5", "eth0")
    for workers in ((pool, pool), (OTHER, OTHER)):
        environment = HorovodLauncher().environment(Placement(workers, pool), 1)
        assert environment[ADDRESS] == "127.0.0.1"
