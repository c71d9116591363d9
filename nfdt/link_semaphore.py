"""Lets one worker at a time pull from the host of all parameter servers, and one at a time push to it.

Shared by all workers at once, a link serves those who began together at the same time: then it is idle while all of them
compute. Two at a time, so that the next one's request is under way while one's tensors are. `docs/decisions/0032`.
"""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import cpu_beside, host_of

_AT_ONCE = 2


def who_takes_turns(servers: Sequence[str], workers: Sequence[str]) -> set[str]:
    """Returns devices of workers.

    Args:
        servers: Devices of the parameter servers.
        workers: Devices of the workers.
    """
    hosts = set(map(host_of, servers))
    far = [worker for worker in workers if host_of(worker) not in hosts]
    # No more than may travel at once need not ask.
    return set(far) if len(hosts) == 1 and len(far) > _AT_ONCE else set()


class LinkSemaphore:
    """Turns of the workers, in each direction of the servers' link; of servers on several hosts nobody waits for any.

    A turn is a token in a queue on the servers' host, so that a graph can wait for it and give it back.
    """

    def __init__(self, servers: Sequence[str], workers: Sequence[str]):
        """Notes whose link it is.

        Args:
            servers: Devices of the parameter servers.
            workers: Devices of the workers.
        """
        self._travelling = who_takes_turns(servers, workers)
        self._device = cpu_beside(servers[0])
        if self._travelling:
            with tf.device(self._device):
                self._out, self._into = (tf.queue.FIFOQueue(_AT_ONCE, tf.int32, [[]]) for _ in range(2))
                for queue in (self._out, self._into):
                    queue.enqueue_many([[0] * _AT_ONCE])

    def pull(self, worker: str) -> None:
        """Waits for a turn in which the worker of a device may pull."""
        if worker in self._travelling:
            with tf.device(self._device):
                self._out.dequeue()

    def push(self, worker: str, computed: tf.Tensor) -> list[tf.Tensor]:
        """Returns what to wait for, in a graph, before a worker's gradients may travel.

        Args:
            worker: Its device.
            computed: There when they are.
        """
        if worker not in self._travelling:
            return []
        with tf.device(self._device), tf.control_dependencies([computed]):
            return [self._into.dequeue()]

    def pulled(self, worker: str, arrived: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns what ends the turn to pull, in a graph.

        Args:
            worker: Its device.
            arrived: There when what was pulled is.
        """
        return [self._end(self._out, arrived)] if worker in self._travelling else []

    def pushed(self, worker: str, arrived: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns what ends the turn to push, in a graph.

        Args:
            worker: Its device.
            arrived: There when what was pushed is.
        """
        return [self._end(self._into, arrived)] if worker in self._travelling else []

    def _end(self, semaphore: tf.queue.FIFOQueue, arrived: Sequence[tf.Tensor]) -> tf.Operation:
        with tf.device(self._device), tf.control_dependencies(arrived):
            return semaphore.enqueue(0)
