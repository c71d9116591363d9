"""Queues a worker's next parameters: each shard puts them there once it has applied the worker's push."""

import threading
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from nfdt.shard import Shard
from nfdt.step import Pulled


class NextParameters:
    """One worker's: on each shard two queues of one snapshot, from which steps take by turns; each leaves the next one's.

    So a step may be called while the one before is under way, and begins when that one has pushed. With one queue two steps
    that wait might take from different shards what the same push has left, and wait for each other.
    """

    def __init__(self, shards: Sequence[Shard]):
        """Leaves nothing.

        Args:
            shards: All of them, on CPUs.
        """
        self._shards = shards
        # Of the next step, and of the one after it.
        self._next, self._after = ([_queue(shard) for shard in shards] for _ in range(2))
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_filled = False
        # Versions of what is in the queues; None if it is not wanted.
        self._left: list[int] | None = None
        self._ended_s = 0.0
        self._error: BaseException | None = None

    def begin(self, pulled: Pulled | None, pull: Callable[[], Pulled]) -> list[tf.Tensor]:
        """Notes that a step is about to be called. If none is under way it gets what the shards have now; two may be.

        Args:
            pulled: What it is to compute with instead; only if none is under way.
            pull: Returns something like it.

        Returns:
            Handles of the queues, of each shard: to take from; to leave in.
        """
        with self._lock:
            if not self._under_way and (pulled is not None or self._left != [shard.version for shard in self._shards]):
                self._fill(pulled or pull())
            self._under_way += 1
            self._next, self._after = self._after, self._next
            return [queue.queue_ref for queue in [*self._after, *self._next]]

    def end(self, versions: list[int], called_s: float) -> float:
        """Notes that a step has ended; returns since when no other one was under way, by `time.perf_counter`.

        Args:
            versions: Of what its push has left.
            called_s: When it was called.
        """
        with self._lock:
            self._under_way -= 1
            self._left = versions
            began_s, self._ended_s = max(called_s, self._ended_s), time.perf_counter()
            return began_s

    def forget(self) -> None:
        """What the last push has left is not wanted: parameters have been set. Not while a step is under way."""
        self._left = None

    def fail(self, error: BaseException) -> BaseException:
        """Lets no step wait for one that has failed; returns what the first one failed with."""
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
            # TensorFlow does not wait for what another host was told to do, unless somebody asks for what came of it.
            for version in unwanted:
                version.numpy()
        for shard, queue, snapshot in zip(self._shards, self._next, pulled.snapshots, strict=True):
            with tf.device(shard.device):
                queue.enqueue([tf.constant(snapshot.version, tf.int64), *snapshot.tensors])
        self._is_filled = True


def take(shard: Shard, handle: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns, in a graph, a version, int64 scalar, and a snapshot's tensors as soon as they are in a shard's queue.

    Args:
        shard: On whose device they are.
        handle: Of the queue.
    """
    specs = [tf.TensorSpec([], tf.int64), *shard.snapshot_signature()]
    with tf.device(shard.device):
        taken = tf.raw_ops.QueueDequeueV2(handle=handle, component_types=_dtypes(shard))
        version, *tensors = (tf.ensure_shape(each, spec.shape) for each, spec in zip(taken, specs, strict=True))
        return version, tensors


def leave(shard: Shard, handle: tf.Tensor, told: tf.Tensor, latest: Sequence[tf.Tensor]) -> tf.Operation:
    """Puts, in a graph, what a push returned into the shard's queue.

    Args:
        shard: That was pushed to.
        handle: Of the queue.
        told: As `Shard.push_in_graph` has it.
        latest: Alike.
    """
    with tf.device(shard.device):
        return tf.raw_ops.QueueEnqueueV2(handle=handle, components=[tf.cast(told[1], tf.int64), *latest])


def _queue(shard: Shard) -> tf.queue.FIFOQueue:
    with tf.device(shard.device):
        return tf.queue.FIFOQueue(1, _dtypes(shard))


def _dtypes(shard: Shard) -> list[tf.DType]:
    return [tf.int64, *(spec.dtype for spec in shard.snapshot_signature())]
