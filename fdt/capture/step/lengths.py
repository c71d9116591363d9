"""How long the rows of a batch are made: what they are padded or cut to is the same on all workers that share it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_math_ops
from tensorflow.python.ops.ragged.ragged_tensor import RaggedTensor

from fdt.capture.patch import Patches
from fdt.capture.step.losses import Losses
from fdt.holes import current_holes


class Lengths:
    """Stands, while a step is traced, where TensorFlow looks for the longest row."""

    def __init__(self, losses: Losses):
        """Takes what tells whether workers have something of their own."""
        self._losses = losses

    def hook(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(gen_math_ops, "_max", self._largest)
        patches.wrap(RaggedTensor, "to_tensor", self._padded)

    def _largest(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Has whole numbers' largest be that of the whole batch: most often all rows are padded, or cut, to it."""
        result, holes = original(*args, **kwargs), current_holes()
        given = args[0] if args else kwargs["input"]
        if holes is None or not isinstance(result, tf.Tensor) or not result.dtype.is_integer:
            return result
        goes_over_rows = result.shape.rank == 0 and isinstance(given, tf.Tensor)
        if goes_over_rows and self._losses.is_workers_own(given):
            return self._losses.is_alike(holes.largest(result))
        return result

    def _padded(
        self, original: Callable[..., Any], ragged: Any, default_value: Any = None, name: Any = None, shape: Any = None
    ) -> Any:
        """Has every worker pad its rows to what the longest row of the whole batch needs."""
        known = isinstance(shape, tf.TensorShape | tuple | list | None) and ragged.shape.rank is not None
        if known and self._losses.is_workers_own(ragged.row_splits):
            wanted = [None] * ragged.shape.rank if shape is None else list(tf.TensorShape(shape))
            # Of which `_largest` is computed over all workers.
            needed = ragged.bounding_shape(out_type=tf.int64)
            lengths = [
                needed[i] if length is None else tf.constant(length, tf.int64) for i, length in enumerate(wanted)
            ]
            padded = original(ragged, default_value, name, tf.stack([tf.constant(-1, tf.int64), *lengths[1:]]))
            padded.set_shape([wanted[0], *wanted[1 : 1 + ragged.ragged_rank], *ragged.shape[1 + ragged.ragged_rank :]])
            return padded
        return original(ragged, default_value, name, shape)
