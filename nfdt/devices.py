"""The devices of a job on one host: logical CPU devices or GPUs for the workers, CPU devices for the parameter servers."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Devices:
    """Names of devices.

    Attributes:
        shards: One for each parameter server.
        workers: One for each worker; several may share a GPU.
    """

    shards: tuple[str, ...]
    workers: tuple[str, ...]


def make_devices(num_workers: int, num_shards: int, num_threads: int) -> Devices:
    """Divides this process's devices; before TensorFlow has used any of them.

    Args:
        num_workers: How many.
        num_shards: How many parameter servers.
        num_threads: Threads that one operation of a worker may use.
    """
    # One pool serves all operations of the process. With one thread, an operation runs where it was called.
    tf.config.threading.set_intra_op_parallelism_threads(1 if num_threads == 1 else num_threads * num_workers)
    tf.config.threading.set_inter_op_parallelism_threads(num_workers + num_shards + 1)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    num_cpus = num_shards + (0 if gpus else num_workers)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(num_cpus)])
    shards = [f"/CPU:{i}" for i in range(num_shards)]
    if gpus:
        workers = [f"/GPU:{i % len(gpus)}" for i in range(num_workers)]
    else:
        workers = [f"/CPU:{num_shards + i}" for i in range(num_workers)]
    return Devices(tuple(shards), tuple(workers))
