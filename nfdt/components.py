"""Reserves room in TensorFlow's table of components for functions over several hosts, before steps are called.

A function's first call registers a component of the function on each device of another host, and the coordinator's TensorFlow
keeps these components in a vector. A call reads that vector while the first call of another function may make it grow, which
moves it: then the process crashes, or sends what its receiver cannot parse (docs/decisions/0085). So this module makes the
vector grow while no function is being called.
"""

import functools
from collections.abc import Iterable, Sequence

import tensorflow as tf

from nfdt.devices import cpu_beside, driver_cpu, host_of


def count(workers: Sequence[str], shards: Sequence[str], functions: int) -> int:
    """Returns how many components the workers' functions may register.

    Args:
        workers: Devices of the workers.
        shards: Devices of the parameter servers.
        functions: How many functions each worker calls.
    """
    return sum(len(_far([worker, *shards], driver_cpu(worker))) for worker in workers) * functions


class Components:
    """Counts this process's components. TensorFlow has one table per process, so there is one instance; not thread-safe.

    Attributes:
        made: Components registered only to make the vector grow.
        expected: Components that workers' functions may register.
    """

    def __init__(self) -> None:
        self.made, self.expected = 0, 0

    @classmethod
    @functools.cache
    def of_process(cls) -> "Components":
        """Returns this process's instance."""
        return cls()

    def expect(self, workers: Sequence[str], shards: Sequence[str], functions: int) -> None:
        """Makes room for more components; call it only while no function runs.

        Args:
            workers: As for `count`.
            shards: As for `count`.
            functions: As for `count`.
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
    """Returns the least capacity of a vector that grew one by one: it doubles when it is full.

    Args:
        number: How many elements it has.
    """
    return 1 << (number - 1).bit_length() if number else 0


def _far(devices: Iterable[str], coordinator: str) -> set[str]:
    """Returns the devices of other hosts on which a function may have components, and the CPUs of those hosts."""
    return {
        each for device in devices if host_of(device) != host_of(coordinator) for each in (device, cpu_beside(device))
    }
