"""Runs many steps in one call: the loop over batches runs in TensorFlow's graph, not in Python."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.program.packing import as_array, empty
from fdt.program.step_program import LoadedProgram, shape_of

# Makes a step on rows (int64 [batch]) of arrays ([num_samples, ...]), with the numbers that sizes have; returns its outputs.
Step = Callable[[Sequence[tf.Tensor], tf.Tensor, tf.Tensor], Sequence[tf.Tensor]]


class StepLoop:
    """Runs a program's step over batches of rows of the bound arrays."""

    def __init__(self, loaded: LoadedProgram, step: Step):
        """
        Args:
            loaded: The program.
            step: Its step.
        """
        self._step = step
        self._outputs = [output.tensor for output in loaded.source.outputs]
        specs = [tf.TensorSpec(_any_length(shape_of(t)), t.dtype) for t in loaded.source.batch]
        self._function = tf.function(
            self._loop,
            autograph=False,
            input_signature=[specs, tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)],
        )

    def trace(self) -> None:
        """Traces the loop, which its first run does otherwise."""
        self._function.get_concrete_function()

    def run(self, arrays: Sequence[tf.Tensor], rows: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        """Runs one step for each line of `rows`.

        Args:
            arrays: [num_samples, ...], one for each input of the batch.
            rows: int64 [num_steps, batch], of whole batches.
            numbers: See `DividedProgram.loop`.

        Returns:
            The last step's outputs.
        """
        given = tf.constant(rows, tf.int64), tf.constant(numbers, tf.int64)
        return [as_array(output) for output in self._function(list(arrays), *given)]

    def _loop(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, numbers: tf.Tensor) -> list[tf.Tensor]:
        num_steps = tf.shape(rows)[0]

        def body(i: tf.Tensor, _: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
            outputs = self._step(arrays, rows[i], numbers)
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


def undivided(loaded: LoadedProgram) -> Step:
    """Returns a program's step unchanged."""

    def step(arrays: Sequence[tf.Tensor], rows: tf.Tensor, _: tf.Tensor) -> Sequence[tf.Tensor]:
        outputs: Sequence[tf.Tensor] = loaded.step(tf.constant(1.0), *[taken(array, rows) for array in arrays])
        return outputs

    return step


def taken(array: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns rows of an array, gathered on the CPU, which holds the arrays."""
    with tf.device("/cpu:0"):
        return tf.gather(array, rows)


def _any_length(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(shape[1:])
