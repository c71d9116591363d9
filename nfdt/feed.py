"""How a worker gets its batches: rows of arrays that are where it computes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from fdt.program import dtype_of
from fdt.v1 import program_pb2
from nfdt.transfer import Transfer


class Feed(Protocol):
    """Arrays of one size in their first dimension. Any thread may call."""

    def batch(self, worker: int, rows: np.ndarray) -> list[tf.Tensor]:
        """Returns a batch where the worker computes.

        Args:
            worker: Its number.
            rows: int64 [batch].
        """


class OwnFeed:
    """Arrays that this process has mapped."""

    def __init__(self, arrays: Sequence[tf.Tensor]):
        """
        Args:
            arrays: [num_samples, ...] each, in this process's memory.
        """
        self.arrays = arrays

    def batch(self, worker: int, rows: np.ndarray) -> list[tf.Tensor]:
        """Gathers on the CPU; see `Feed.batch`."""
        indices = tf.constant(rows, tf.int64)
        with tf.device("/CPU:0"):
            return [tf.gather(array, indices) for array in self.arrays]


class SentFeed:
    """Arrays that this process has mapped, of which it sends every worker its batches."""

    def __init__(self, own: OwnFeed, senders: Sequence[Transfer]):
        """Sends nothing yet.

        Args:
            own: Takes the rows.
            senders: To each worker.
        """
        self._own, self._senders = own, senders

    def batch(self, worker: int, rows: np.ndarray) -> list[tf.Tensor]:
        """See `Feed.batch`."""
        return self._senders[worker](self._own.batch(worker, rows))


class FileFeed:
    """Arrays that another host has as files: it maps them and takes the rows itself, so that only row numbers travel."""

    def __init__(self, paths: Sequence[str], specs: Sequence[program_pb2.Tensor], device: str):
        """Reads nothing yet.

        Args:
            paths: On that host: the arrays' bytes, in C order.
            specs: Their types and shapes.
            device: A CPU of that host.
        """
        self._device = device
        self._read = tf.function(
            lambda rows: [tf.gather(_mapped(path, spec), rows) for path, spec in zip(paths, specs, strict=True)],
            input_signature=[tf.TensorSpec([None], tf.int64)],
            autograph=False,
        )

    def batch(self, worker: int, rows: np.ndarray) -> list[tf.Tensor]:
        """See `Feed.batch`."""
        with tf.device(self._device):
            return list(self._read(tf.constant(rows, tf.int64)))


class Feeds:
    """For every worker the feed of its host."""

    def __init__(self, feeds: Sequence[Feed]):
        """
        Args:
            feeds: Of every worker.
        """
        self._feeds = list(feeds)

    def batch(self, worker: int, rows: np.ndarray) -> list[tf.Tensor]:
        """See `Feed.batch`."""
        return self._feeds[worker].batch(worker, rows)


def _mapped(path: str, spec: program_pb2.Tensor) -> tf.Tensor:
    shape = tuple(spec.shape)
    if not np.prod(shape):
        return tf.zeros(shape, spec.dtype)
    return tf.raw_ops.ImmutableConst(dtype=tf.dtypes.as_dtype(dtype_of(spec)), shape=shape, memory_region_name=path)
