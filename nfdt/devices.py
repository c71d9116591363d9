"""Names the devices of a job: on each host the CPU for parameter servers and workers, or GPUs for the workers.

All CPU workers and servers of a host share one device: TensorFlow splits a function that takes tensors of two devices into
parts that wait for each other (decision 0054 has the cost).
"""

import dataclasses

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from fdt.base.native import optional
from nfdt.clock import now_s

# The job's name in TensorFlow's device names, for jobs on several hosts.
JOB = "fdt"


@dataclasses.dataclass(frozen=True)
class Devices:
    """Names of devices.

    Attributes:
        shards: One for each parameter server; the servers of a host share a device.
        workers: One for each worker; several may share a CPU or GPU.
    """

    shards: tuple[str, ...]
    workers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class HostDevices:
    """What a job uses of one host.

    Attributes:
        num_workers: Workers there.
        num_shards: Parameter servers there.
        num_threads: Threads that one operation of a worker may use.
        num_gpus: GPUs that the host has; without one, workers are CPU devices.
    """

    num_workers: int
    num_shards: int
    num_threads: int
    num_gpus: int

    @property
    def intra_op_threads(self) -> int:
        """Returns the size of the pool that serves all operations; with 1, an operation runs in its caller's thread."""
        return 1 if self.num_threads == 1 else self.num_threads * max(1, self.num_workers)

    @property
    def inter_op_threads(self) -> int:
        """Returns how many operations may run at once: at most the workers' threads, at least two.

        With more, branches of one worker's step take a core from another's. No operation blocks its thread: locks, the
        staleness bound and transfers wait without one.
        """
        return max(2, min(self.num_workers + self.num_shards + 1, self.num_threads * self.num_workers))

    def shards(self, prefix: str = "/") -> list[str]:
        """Returns the names of the parameter servers' devices."""
        return [f"{prefix}CPU:0"] * self.num_shards

    def workers(self, prefix: str = "/") -> list[str]:
        """Returns the names of the workers' devices."""
        if self.num_gpus:
            return [f"{prefix}GPU:{i % self.num_gpus}" for i in range(self.num_workers)]
        return [f"{prefix}CPU:0"] * self.num_workers


def cpu_beside(device: str) -> str:
    """Returns the CPU device of a device's host; the device itself if it is a CPU."""
    host, _, unit = device.rpartition("/device:") if "/device:" in device else ("", "", device.lstrip("/"))
    return device if unit.startswith("CPU") else f"{host}/device:CPU:0"


def host_of(device: str) -> str:
    """Returns the process that a device belongs to; "" in a job of one process."""
    return device.partition("/device:")[0] if "/job:" in device else ""


def driver_cpu(device: str) -> str:
    """Returns the coordinator's CPU, in the naming scheme of a device."""
    return f"/job:{JOB}/replica:0/task:0/device:CPU:0" if host_of(device) else "/CPU:0"


def settle(device: str) -> None:
    """Waits until a device's host has run all operations sent to it; for another host, TensorFlow waits for values only."""
    if host_of(device):
        with tf.device(device):
            now_s().numpy()


def count_gpus() -> int:
    """Returns how many GPUs TensorFlow finds on this host."""
    return len(tf.config.list_physical_devices("GPU"))


def configure(host: HostDevices) -> None:
    """Configures this process's devices; call it before TensorFlow has used any of them."""
    _share_cores(host)
    tf.config.threading.set_intra_op_parallelism_threads(host.intra_op_threads)
    tf.config.threading.set_inter_op_parallelism_threads(host.inter_op_threads)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def server_config(host: HostDevices) -> config_pb2.ConfigProto:
    """Returns the same configuration for the `tf.distribute.Server` of a device host."""
    _share_cores(host)
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=host.intra_op_threads,
        inter_op_parallelism_threads=host.inter_op_threads,
    )
    config.gpu_options.allow_growth = True
    return config


def _share_cores(host: HostDevices) -> None:
    """Lets an update use all of the job's cores: a program runs one at a time, and the worker that pushed waits for it."""
    if (native := optional("nfdt")) is not None:
        native.functions.fdt_set_cores(host.num_threads * max(1, host.num_workers))


def make_devices(num_workers: int, num_shards: int, num_threads: int) -> Devices:
    """Divides this process's devices between all workers and parameter servers of a job."""
    host = HostDevices(num_workers, num_shards, num_threads, count_gpus())
    configure(host)
    return Devices(tuple(host.shards()), tuple(host.workers()))
