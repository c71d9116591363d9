"""Lets one worker at a time pull from the host of all parameter servers, and one at a time push to it.

Workers that share a link and begin together end their transfers together; then the link is idle while all of them compute.
Two transfers at once per direction: one worker's request travels while another's tensors do (`docs/decisions/0032`).
"""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import cpu_beside, host_of

_AT_ONCE = 2


def who_takes_turns(servers: Sequence[str], workers: Sequence[str]) -> set[str]:
    """Returns the devices of the workers that have to acquire the semaphore.

    Args:
        servers: Devices of the parameter servers.
        workers: Devices of the workers.
    """
    hosts = set(map(host_of, servers))
    far = [worker for worker in workers if host_of(worker) not in hosts]
    # Up to `_AT_ONCE` workers never have to wait.
    return set(far) if len(hosts) == 1 and len(far) > _AT_ONCE else set()


class LinkSemaphore:
    """Limits the transfers in each direction of the servers' link; unlimited if servers are on several hosts.

    A permit is an element of a queue on the servers' host, so that a graph can acquire and release it.
    """

    def __init__(self, servers: Sequence[str], workers: Sequence[str]):
        """Makes the queues, if any worker has to wait.

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
        """Acquires a permit for the worker of a device to pull; waits for one."""
        if worker in self._travelling:
            with tf.device(self._device):
                self._out.dequeue()

    def push(self, worker: str, computed: tf.Tensor) -> list[tf.Tensor]:
        """Acquires, in a graph, a permit to push; gradients have to wait for the returned tensors.

        Args:
            worker: The worker's device.
            computed: A tensor that exists once the gradients have been computed.
        """
        if worker not in self._travelling:
            return []
        with tf.device(self._device), tf.control_dependencies([computed]):
            return [self._into.dequeue()]

    def pulled(self, worker: str, arrived: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns the operation that releases the permit to pull, in a graph.

        Args:
            worker: The worker's device.
            arrived: Tensors that exist once the parameters have arrived.
        """
        return [self._end(self._out, arrived)] if worker in self._travelling else []

    def pushed(self, worker: str, arrived: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Returns the operation that releases the permit to push, in a graph.

        Args:
            worker: The worker's device.
            arrived: Tensors that exist once the gradients have arrived.
        """
        return [self._end(self._into, arrived)] if worker in self._travelling else []

    def _end(self, semaphore: tf.queue.FIFOQueue, arrived: Sequence[tf.Tensor]) -> tf.Operation:
        with tf.device(self._device), tf.control_dependencies(arrived):
            return semaphore.enqueue(0)
