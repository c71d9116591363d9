"""Queues a worker's next parameters: each shard enqueues its own once it has applied the worker's push."""

import threading
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from nfdt.shard import Shard
from nfdt.step import Pulled


class NextParameters:
    """One worker's queues: on each shard two that hold one snapshot. Steps alternate between them; each fills the next one's.

    So a step may be called while the one before runs, and begins when that one has pushed. With one queue per shard, two
    waiting steps could each take a part of the same push's parameters, from different shards, and deadlock.
    """

    def __init__(self, shards: Sequence[Shard]):
        """Makes empty queues.

        Args:
            shards: All of them, on CPUs.
        """
        self._shards = shards
        # The queues of the next step, and of the step after it.
        self._next, self._after = ([_queue(shard) for shard in shards] for _ in range(2))
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_filled = False
        # Versions of the queued snapshots; None if these are out of date.
        self._left: list[int] | None = None
        self._ended_s = 0.0
        self._error: BaseException | None = None

    def begin(self, pulled: Pulled | None, pull: Callable[[], Pulled]) -> list[tf.Tensor]:
        """Notes that a step is about to be called; up to two may run. If none runs, it gets the shards' current parameters.

        Args:
            pulled: The parameters to compute with instead; only if no step runs.
            pull: Returns the shards' current parameters.

        Returns:
            Handles of queues: for each shard the one to take from, then for each shard the one to fill.
        """
        with self._lock:
            if not self._under_way and (pulled is not None or self._left != [shard.version for shard in self._shards]):
                self._fill(pulled or pull())
            self._under_way += 1
            self._next, self._after = self._after, self._next
            return [queue.queue_ref for queue in [*self._after, *self._next]]

    def end(self, versions: list[int], called_s: float) -> float:
        """Notes that a step has ended; returns when it became the worker's only running step, by `time.perf_counter`.

        Args:
            versions: Each shard's version after its push.
            called_s: When it was called.
        """
        with self._lock:
            self._under_way -= 1
            self._left = versions
            began_s, self._ended_s = max(called_s, self._ended_s), time.perf_counter()
            return began_s

    def forget(self) -> None:
        """Discards the queued snapshots, since parameters have been set. Call it only while no step runs."""
        self._left = None

    def fail(self, error: BaseException) -> BaseException:
        """Ends the wait of steps that follow a failed one; returns the first step's error."""
        with self._lock:
            if self._error is None:
                self._error = error
                for queue in [*self._next, *self._after]:
                    queue.close(cancel_pending_enqueues=True)
            return self._error

    def _fill(self, pulled: Pulled) -> None:
        if self._is_filled:
            unwanted = []
            for shard, queue in zip(self._shards, self._next, strict=True):
                with tf.device(shard.device):
                    unwanted.append(queue.dequeue()[0])
            # TensorFlow does not wait for operations on another host until their results are read.
            for version in unwanted:
                version.numpy()
        for shard, queue, snapshot in zip(self._shards, self._next, pulled.snapshots, strict=True):
            with tf.device(shard.device):
                queue.enqueue([tf.constant(snapshot.version, tf.int64), *snapshot.tensors])
        self._is_filled = True


def take(shard: Shard, handle: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Takes, in a graph, a version (int64 scalar) and a snapshot's tensors from a shard's queue; waits until they are there.

    Args:
        shard: The shard, which has the queue on its device.
        handle: The queue's handle.
    """
    specs = [tf.TensorSpec([], tf.int64), *shard.snapshot_signature()]
    with tf.device(shard.device):
        taken = tf.raw_ops.QueueDequeueV2(handle=handle, component_types=_dtypes(shard))
        version, *tensors = (tf.ensure_shape(each, spec.shape) for each, spec in zip(taken, specs, strict=True))
        return version, tensors


def leave(shard: Shard, handle: tf.Tensor, told: tf.Tensor, latest: Sequence[tf.Tensor]) -> tf.Operation:
    """Puts, in a graph, the version and parameters after a push into the shard's queue.

    Args:
        shard: The shard that was pushed to.
        handle: The queue's handle.
        told: The numbers that `Shard.push_in_graph` returned.
        latest: The parameters that it returned.
    """
    with tf.device(shard.device):
        return tf.raw_ops.QueueEnqueueV2(handle=handle, components=[tf.cast(told[1], tf.int64), *latest])


def _queue(shard: Shard) -> tf.queue.FIFOQueue:
    with tf.device(shard.device):
        return tf.queue.FIFOQueue(1, _dtypes(shard))


def _dtypes(shard: Shard) -> list[tf.DType]:
    return [tf.int64, *(spec.dtype for spec in shard.snapshot_signature())]
