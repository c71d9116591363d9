"""Connects the devices of a job on several hosts: the coordinator's process uses its own and all that device hosts lend."""

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence

import tensorflow as tf

from fdt.errors import WorkerError
from fdt.worker.runtime import Rendezvous
from nfdt.cluster import Cluster
from nfdt.devices import JOB, Devices, HostDevices, configure, count_gpus, server_config

# How long the coordinator waits for each device host's address.
_MEET_S = 60.0
_ATTEMPTS = 3


def lend(
    cluster: Cluster, rendezvous: Rendezvous, rank: int, shard_hosts: Sequence[int], num_threads: int
) -> "tf.distribute.Server":
    """Lends this process's devices to the coordinator for as long as the returned server lives.

    TensorFlow's server listens on every interface, whatever address it is given.

    Args:
        cluster: All hosts.
        rendezvous: Where this process publishes its address and number of GPUs.
        rank: This process's rank.
        shard_hosts: For each parameter server the rank of its host.
        num_threads: Threads that one operation of a worker here may use.
    """
    host = _host(cluster, rank, shard_hosts, num_threads, count_gpus())
    address, port = cluster.address(rank)
    spec = tf.train.ClusterSpec({JOB: {rank: f"{address}:{port}"}})
    server = tf.distribute.Server(spec, job_name=JOB, task_index=rank, config=server_config(host))
    # The system may have chosen the port; the host name in `target` is always "localhost".
    port = int(server.target.rpartition(":")[2])
    offer = {"address": f"{address}:{port}", "num_gpus": host.num_gpus, "num_threads": num_threads}
    rendezvous.put(f"host/{rank}", json.dumps(offer).encode())
    return server


def borrow(cluster: Cluster, rendezvous: Rendezvous, shard_hosts: Sequence[int], num_threads: int) -> Devices:
    """Connects to the device hosts; call it before TensorFlow has used a device of this process.

    Args:
        cluster: All hosts.
        rendezvous: Where the device hosts publish theirs.
        shard_hosts: For each parameter server the rank of its host.
        num_threads: Threads that one operation of a worker of this process may use.

    Raises:
        WorkerError: A process cannot be reached.
    """
    own = _host(cluster, 0, shard_hosts, num_threads, count_gpus())
    hosts, addresses = [own], {}
    for rank in range(1, len(cluster.members)):
        offer = json.loads(rendezvous.wait(f"host/{rank}", _MEET_S))
        addresses[rank] = offer["address"]
        hosts.append(_host(cluster, rank, shard_hosts, offer["num_threads"], offer["num_gpus"]))
    configure(own)
    _connect(*cluster.address(0), addresses)
    prefixes = [f"/job:{JOB}/replica:0/task:{rank}/device:" for rank in range(len(hosts))]
    free = [iter(host.shards(prefix)) for host, prefix in zip(hosts, prefixes, strict=True)]
    shards = [next(free[rank]) for rank in shard_hosts]
    workers = [device for host, prefix in zip(hosts, prefixes, strict=True) for device in host.workers(prefix)]
    return Devices(tuple(shards), tuple(workers))


@contextlib.contextmanager
def named_hosts(cluster: Cluster | None) -> Iterator[None]:
    """Turns TensorFlow's connection errors into a WorkerError that names the other hosts."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError) as error:
        if cluster is None:
            raise
        others = ", ".join(member.address for member in cluster.members[1:])
        raise WorkerError(
            f"The process of this job on one of the hosts {others} does not answer any more: {error.message}"
        ) from error


def _host(cluster: Cluster, rank: int, shard_hosts: Sequence[int], num_threads: int, num_gpus: int) -> HostDevices:
    return HostDevices(cluster.members[rank].num_workers, shard_hosts.count(rank), num_threads, num_gpus)


def _connect(address: str, own_port: int, others: dict[int, str]) -> None:
    for attempt in range(_ATTEMPTS):
        port = own_port or _free_port(address)
        spec = tf.train.ClusterSpec({JOB: {0: f"{address}:{port}", **others}})
        try:
            tf.config.experimental_connect_to_cluster(
                spec, job_name=JOB, task_index=0, make_master_device_default=False
            )
            return
        except tf.errors.OpError as error:
            if attempt == _ATTEMPTS - 1:
                raise WorkerError(
                    f"The processes of this job cannot reach each other on {address} and {', '.join(others.values())}: "
                    f"{error.message}"
                ) from error


def _free_port(address: str) -> int:
    """Returns a free port: other processes need it before TensorFlow opens it, so that call cannot choose one."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
