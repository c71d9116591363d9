"""Many steps in one call: the loop over batches runs in TensorFlow's graph, not in Python."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.packing import empty
from fdt.program import LoadedProgram, shape_of


def share_of(batch_size: int, rank: int, num_ranks: int, rows: int = 0) -> tuple[int, int]:
    """Returns [low, high), the rows of a batch that a rank computes on.

    The parts are contiguous and in rank order; the first batch_size % num_ranks ranks get one row more. If a rank has to be
    given so many `rows` and no other number, the first ranks are, and the others nothing.
    """
    if rows:
        low = min(rank * rows, batch_size)
        return low, min(low + rows, batch_size)
    small, extra = divmod(batch_size, num_ranks)
    low = rank * small + min(rank, extra)
    return low, low + small + (1 if rank < extra else 0)


# Given a worker's share of the batch.
PutTogether = Callable[[tf.Tensor], None]


class StepLoop:
    """Runs a program's step over batches of rows of the bound arrays."""

    def __init__(self, loaded: LoadedProgram, put_together: PutTogether):
        """Takes a program.

        Args:
            loaded: It.
            put_together: What to do with variables after each step.
        """
        self._step, self._put_together = loaded.step, put_together
        self._outputs = [output.tensor for output in loaded.source.outputs]
        specs = [tf.TensorSpec(_any_length(shape_of(t)), t.dtype) for t in loaded.source.batch]
        self._function = tf.function(
            self._loop,
            autograph=False,
            input_signature=[specs, tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([], tf.float32)],
        )

    def run(self, arrays: Sequence[tf.Tensor], rows: np.ndarray, share: float) -> list[np.ndarray]:
        """Runs one step a line of `rows`.

        Args:
            arrays: [num_samples, ...], one for each input of the batch.
            rows: int64 [num_steps, batch], this worker's rows.
            share: This worker's part of the global batch.

        Returns:
            The last step's outputs.
        """
        outputs = self._function(list(arrays), tf.constant(rows, tf.int64), tf.constant(share, tf.float32))
        return [output.numpy() for output in outputs]

    def _loop(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, share: tf.Tensor) -> list[tf.Tensor]:
        num_steps = tf.shape(rows)[0]

        def body(i: tf.Tensor, _: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.device("/cpu:0"):
                batch = [tf.gather(array, rows[i]) for array in arrays]
            outputs = self._step(share, *batch)
            self._put_together(share)
            return i + 1, [tf.ensure_shape(o, shape_of(s)) for o, s in zip(outputs, self._outputs, strict=True)]

        shapes = [shape_of(s) for s in self._outputs]
        first = [tf.constant(empty(output)) for output in self._outputs]
        _, outputs = tf.while_loop(
            lambda i, _: i < num_steps,
            body,
            (tf.constant(0), first),
            shape_invariants=(tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        return outputs


def _any_length(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(shape[1:])
