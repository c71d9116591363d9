"""Takes a worker's batches from arrays by row numbers; each array is a tensor on some host.

A feed is a sequence of `Arrays`, one for each worker.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fdt.program.step_program import dtype_of
from fdt.v1 import program_pb2


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays with equal first dimensions. Thread-safe.

    Attributes:
        tensors: [num_samples, ...] each.
        device: The CPU that holds them in its memory and gathers rows from them.
    """

    tensors: Sequence[tf.Tensor]
    device: str = "/CPU:0"

    def batch(self, rows: np.ndarray) -> list[tf.Tensor]:
        """Returns rows of the arrays, on `device`.

        Args:
            rows: int64 [batch].
        """
        with tf.device(self.device):
            return take(self.tensors, tf.constant(rows, tf.int64))


Feed = Sequence[Arrays]


def take(tensors: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns rows of tensors.

    Args:
        tensors: [num_samples, ...] each.
        rows: int64 [batch].
    """
    return [tf.gather(tensor, rows) for tensor in tensors]


def mapped(paths: Sequence[str], specs: Sequence[program_pb2.Tensor], device: str) -> Arrays:
    """Maps arrays that a host has as files into that host's memory, so that only row numbers travel to it.

    Args:
        paths: Files on that host with the arrays' bytes, in C order.
        specs: Their types and shapes.
        device: A CPU of that host.
    """
    with tf.device(device):
        return Arrays([_mapped(path, spec) for path, spec in zip(paths, specs, strict=True)], device)


def _mapped(path: str, spec: program_pb2.Tensor) -> tf.Tensor:
    shape = tuple(spec.shape)
    if not np.prod(shape):
        return tf.zeros(shape, spec.dtype)
    return tf.raw_ops.ImmutableConst(dtype=tf.dtypes.as_dtype(dtype_of(spec)), shape=shape, memory_region_name=path)
