"""How the processes of an asynchronous job are told of each other."""

import dataclasses

import pytest

from fdt.errors import UsageError
from fdt.worker.runtime import Place, Placement
from nfdt.cluster import Member, read_cluster
from nfdt.devices import HostDevices, cpu_beside
from nfdt.launch import ParameterServerLauncher
from nfdt.options import read_options

# Every 127.x.y.z is this machine, so they stand in for hosts.
OWN, OTHER = Place("", "127.0.0.1", "eth0"), Place("host-1", "127.0.0.9", "eth7")


def test_on_one_host_nothing_is_told() -> None:
    for place in (OWN, OTHER):
        environment = ParameterServerLauncher().environment(Placement((place,) * 3, OWN), 0)
        assert dict(environment) == {}
        assert read_cluster(environment) is None


def test_every_process_knows_all_hosts_in_the_order_of_ranks() -> None:
    placement = Placement((OWN, OTHER, OTHER), OWN)
    cluster = read_cluster(ParameterServerLauncher().environment(placement, 0))
    assert cluster == read_cluster(ParameterServerLauncher().environment(placement, 1))
    assert cluster is not None
    assert cluster.members == (Member("127.0.0.1", 1), Member("127.0.0.9", 2))
    # The system chooses ports where it is the hosts' network; in a network of their own they are known.
    assert [cluster.address(rank) for rank in (0, 1)] == [("127.0.0.1", 0), ("127.0.0.9", 0)]
    tunnelled = dataclasses.replace(placement, tunnelled=True)
    cluster = read_cluster(ParameterServerLauncher().environment(tunnelled, 0))
    assert cluster is not None
    assert [cluster.address(rank) for rank in (0, 1)] == [("127.0.1.1", 7100), ("127.0.1.2", 7101)]


@pytest.mark.parametrize(
    ("options", "num_hosts", "expected"),
    [
        ({}, 2, (0,)),
        ({"ps": "3"}, 2, (0, 1, 0)),
        ({"ps": "2", "ps-place": "hosts"}, 3, (0, 1)),
        ({"ps": "3", "ps-place": "pool"}, 2, (0, 0, 0)),
    ],
)
def test_where_parameter_servers_are(options: dict[str, str], num_hosts: int, expected: tuple[int, ...]) -> None:
    assert read_options(options).shard_hosts(num_hosts) == expected
    assert ParameterServerLauncher().needs_pool(options) == (options.get("ps-place") == "pool")


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"ps-place": "moon"}, "must be one of hosts, pool"), ({"ps-place": "pool", "update": "averaging"}, "has none")],
)
def test_where_parameter_servers_cannot_be(options: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read_options(options)


def test_the_pool_takes_part_without_workers() -> None:
    placement = Placement((OTHER, OTHER), OWN, pool_takes_part=True)
    cluster = read_cluster(ParameterServerLauncher().environment(placement, 0))
    assert cluster is not None
    assert cluster.members == (Member("127.0.0.1", 0), Member("127.0.0.9", 2))


def test_devices_of_a_host() -> None:
    cpus = HostDevices(num_workers=2, num_shards=1, num_threads=1, num_gpus=0)
    assert cpus.intra_op_threads == 1 and cpus.inter_op_threads == 2
    assert cpus.shards("/job:fdt/replica:0/task:1/device:") == ["/job:fdt/replica:0/task:1/device:CPU:0"]
    assert cpus.workers() == ["/CPU:0", "/CPU:0"]
    gpus = HostDevices(num_workers=3, num_shards=0, num_threads=4, num_gpus=2)
    assert gpus.intra_op_threads == 12 and gpus.inter_op_threads == 4
    assert HostDevices(num_workers=0, num_shards=1, num_threads=1, num_gpus=0).inter_op_threads == 2
    assert gpus.shards() == [] and gpus.workers() == ["/GPU:0", "/GPU:1", "/GPU:0"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("/CPU:2", "/CPU:2"),
        ("/GPU:1", "/device:CPU:0"),
        ("/job:fdt/replica:0/task:1/device:CPU:2", "/job:fdt/replica:0/task:1/device:CPU:2"),
        ("/job:fdt/replica:0/task:1/device:GPU:3", "/job:fdt/replica:0/task:1/device:CPU:0"),
    ],
)
def test_batches_are_gathered_beside_the_worker(device: str, expected: str) -> None:
    assert cpu_beside(device) == expected
