"""Makes room in TensorFlow's table of components for functions over several hosts, before steps are called.

The process that drives has a function's first call register a component of it on each device of another host, and keeps what
it knows of components in a vector. A call looks into that vector while another one's first call may make it grow, which moves
it: then the process crashes, or sends what its receiver cannot parse (docs/decisions/0085). So the vector is made to grow
while nothing is called.
"""

import functools
from collections.abc import Iterable, Sequence

import tensorflow as tf

from nfdt.devices import cpu_beside, driver_cpu, host_of


def count(workers: Sequence[str], shards: Sequence[str], functions: int) -> int:
    """Returns how many components functions of workers may have.

    Args:
        workers: Devices of the workers.
        shards: Devices of the parameter servers.
        functions: That each worker calls.
    """
    return sum(len(_far([worker, *shards], driver_cpu(worker))) for worker in workers) * functions


class Components:
    """Those that this process knows of. One thread at a time; there is one table in a process, so there is one of these.

    Attributes:
        made: Components that are there for the sake of room.
        expected: Components that may come.
    """

    def __init__(self) -> None:
        self.made, self.expected = 0, 0

    @classmethod
    @functools.cache
    def of_process(cls) -> "Components":
        """Returns the one of this process."""
        return cls()

    def expect(self, workers: Sequence[str], shards: Sequence[str], functions: int) -> None:
        """Makes room for more; while no function is called.

        Args:
            workers: As `count` has them.
            shards: Alike.
            functions: Alike.
        """
        coordinator = driver_cpu(workers[0])
        hosts = sorted({cpu_beside(device) for device in _far([*workers, *shards], coordinator)})
        self.expected += count(workers, shards, functions)
        while self.made + self.expected > room(self.made):
            self._make(hosts, coordinator)

    def _make(self, devices: Sequence[str], coordinator: str) -> None:
        def constants() -> list[tf.Tensor]:
            made = []
            for device in devices:
                with tf.device(device):
                    made.append(tf.constant(0))
            return made

        with tf.device(coordinator):
            tf.nest.flatten(tf.compat.v1.wrap_function(constants, [])())
        self.made += len(devices)


def room(number: int) -> int:
    """Returns how many elements a vector has room for, at least, once it has grown one by one: it doubles when it is full.

    Args:
        number: Of its elements.
    """
    return 1 << (number - 1).bit_length() if number else 0


def _far(devices: Iterable[str], coordinator: str) -> set[str]:
    """Returns which devices of other hosts a function may have components on; of a host with any, its CPU too."""
    return {
        each for device in devices if host_of(device) != host_of(coordinator) for each in (device, cpu_beside(device))
    }
