"""Runs many steps in one call: the loop over batches runs in TensorFlow's graph, not in Python."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.base import heap
from fdt.program.packing import as_array, empty
from fdt.program.step_program import LoadedProgram, shape_of

# Makes a step on rows (int64 [batch]) of arrays ([num_samples, ...]), with the numbers that sizes have; returns its outputs.
Step = Callable[[Sequence[tf.Tensor], tf.Tensor, tf.Tensor], Sequence[tf.Tensor]]


class StepLoop:
    """Runs a program's step over batches of one size, which are rows of the same arrays."""

    def __init__(self, loaded: LoadedProgram, step: Step):
        """
        Args:
            loaded: The program.
            step: Its step.
        """
        self._step: Step | None = step
        self._has_run = False
        self._constants = _Constants()
        self._outputs = [output.tensor for output in loaded.source.outputs]
        specs = [tf.TensorSpec(_any_length(shape_of(t)), t.dtype) for t in loaded.source.batch]
        self._function = tf.function(
            self._loop,
            autograph=False,
            input_signature=[specs, tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)],
        )

    def trace(self) -> None:
        """Traces the loop, which its first run does otherwise."""
        _ = self._traced
        # It is traced once, and what the step was made of takes as much memory as its graph.
        self._step = None

    @functools.cached_property
    def _traced(self) -> "_Flat":
        return _Flat(self._function)

    def run(self, arrays: Sequence[tf.Tensor], rows: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        """Runs one step for each line of `rows`.

        Args:
            arrays: [num_samples, ...], one for each input of the batch.
            rows: int64 [num_steps, batch], of whole batches.
            numbers: See `DividedProgram.loop`.

        Returns:
            The last step's outputs.
        """
        outputs = self._traced([*arrays, *self._constants.of(rows, numbers)])
        self._has_run = _trimmed(self._has_run)
        return outputs

    def _loop(self, arrays: Sequence[tf.Tensor], rows: tf.Tensor, numbers: tf.Tensor) -> list[tf.Tensor]:
        assert self._step is not None
        make = self._step

        def step(i: tf.Tensor) -> Sequence[tf.Tensor]:
            with tf.device("/cpu:0"):
                of_step = rows[i]
            return make(arrays, of_step, numbers)

        return _repeated(step, tf.shape(rows)[0], self._outputs)


class PackedLoop:
    """Runs a program's step over batches of different sizes: an input's values, of all batches, are one flat array."""

    def __init__(self, loaded: LoadedProgram, step: Step):
        """
        Args:
            loaded: The program.
            step: Its step.
        """
        self._step: Step | None = step
        self._has_run = False
        self._outputs = [output.tensor for output in loaded.source.outputs]
        self._shapes = [_any_length(shape_of(t)) for t in loaded.source.batch]
        flat = [tf.TensorSpec([None], t.dtype) for t in loaded.source.batch]
        shapes = [tf.TensorSpec([None, shape.rank], tf.int64) for shape in self._shapes]
        self._function = tf.function(
            self._loop, autograph=False, input_signature=[flat, shapes, tf.TensorSpec([None, None], tf.int64)]
        )

    def trace(self) -> None:
        """Traces the loop, which its first run does otherwise."""
        _ = self._traced
        # It is traced once, and what the step was made of takes as much memory as its graph.
        self._step = None

    @functools.cached_property
    def _traced(self) -> "_Flat":
        return _Flat(self._function)

    def run(self, batches: Sequence[Sequence[np.ndarray]], numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs one step for each batch.

        Args:
            batches: Arrays [batch, ...] of whole batches, one for each input.
            numbers: See `DividedProgram.loop`; for each batch.

        Returns:
            The last step's outputs.
        """
        inputs = list(zip(*batches, strict=True))
        flat = [np.concatenate([array.reshape(-1) for array in arrays]) for arrays in inputs]
        shapes = [np.array([array.shape for array in arrays], np.int64) for arrays in inputs]
        with tf.device("/cpu:0"):
            given = [tf.constant(array) for array in (*flat, *shapes, np.stack(numbers))]
        outputs = self._traced(given)
        self._has_run = _trimmed(self._has_run)
        return outputs

    def _loop(self, flat: Sequence[tf.Tensor], shapes: Sequence[tf.Tensor], numbers: tf.Tensor) -> list[tf.Tensor]:
        with tf.device("/cpu:0"):
            lengths = [tf.reduce_prod(each, axis=1) for each in shapes]
            starts = [tf.cumsum(each, exclusive=True) for each in lengths]

        assert self._step is not None
        make = self._step

        def step(i: tf.Tensor) -> Sequence[tf.Tensor]:
            with tf.device("/cpu:0"):
                inputs = zip(flat, starts, lengths, shapes, self._shapes, strict=True)
                arrays = [
                    tf.ensure_shape(tf.reshape(values[start[i] : start[i] + length[i]], shape[i]), static)
                    for values, start, length, shape, static in inputs
                ]
                rows, of_sizes = tf.range(shapes[0][i, 0]), numbers[i]
            return make(arrays, rows, of_sizes)

        return _repeated(step, tf.shape(numbers)[0], self._outputs)


class _Flat:
    """A tf.function with one trace, called past TensorFlow's look at its arguments, which takes as long as a small step."""

    def __init__(self, function: Any) -> None:
        self._traced = function.get_concrete_function()
        self._captured = list(self._traced.captured_inputs)

    def __call__(self, given: list[tf.Tensor]) -> list[np.ndarray]:
        """Calls it with all of its tensors, in order; returns its outputs."""
        return [as_array(output) for output in self._traced._call_flat(given, self._captured)]


class _Constants:
    """Tensors of row numbers and sizes. Steps that are given their own arrays have the same ones each time."""

    def __init__(self) -> None:
        self._known: list[tuple[bytes, tuple[int, ...], tf.Tensor]] = []

    def of(self, *arrays: np.ndarray) -> list[tf.Tensor]:
        """Returns tensors of arrays of int64."""
        self._known = [self._same(place, array) for place, array in enumerate(arrays)]
        return [tensor for _, _, tensor in self._known]

    def _same(self, place: int, array: np.ndarray) -> tuple[bytes, tuple[int, ...], tf.Tensor]:
        content = array.tobytes()
        if place < len(self._known) and self._known[place][:2] == (content, array.shape):
            return self._known[place]
        with tf.device("/cpu:0"):
            return content, array.shape, tf.constant(array, tf.int64)


def _trimmed(before: bool) -> bool:
    """Gives back what TensorFlow has used to optimize a step, unless that was done before."""
    if not before:
        heap.give_back()
    return True


def _repeated(step: Callable[[tf.Tensor], Sequence[tf.Tensor]], num_steps: tf.Tensor, outputs: Sequence[Any]) -> Any:
    """Makes steps one after the other.

    Args:
        step: Makes the step of a number.
        num_steps: How many.
        outputs: Descriptions of a step's outputs.

    Returns:
        The last step's outputs.
    """

    def body(i: tf.Tensor, _: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return i + 1, [tf.ensure_shape(o, shape_of(s)) for o, s in zip(step(i), outputs, strict=True)]

    first = [tf.constant(empty(output)) for output in outputs]
    _, last = tf.while_loop(
        lambda i, _: i < num_steps,
        body,
        (tf.constant(0), first),
        shape_invariants=(tf.TensorShape([]), [shape_of(output) for output in outputs]),
        parallel_iterations=1,
    )
    return last


def undivided(loaded: LoadedProgram, is_compiled: bool) -> Step:
    """Returns a program's step unchanged, or compiled by XLA as a whole."""

    def whole(*batch: tf.Tensor) -> Sequence[tf.Tensor]:
        outputs: Sequence[tf.Tensor] = loaded.step(tf.constant(1.0), *batch)
        return outputs

    compute = tf.function(whole, autograph=False, jit_compile=True) if is_compiled else whole

    def step(arrays: Sequence[tf.Tensor], rows: tf.Tensor, _: tf.Tensor) -> Sequence[tf.Tensor]:
        outputs: Sequence[tf.Tensor] = compute(*[taken(array, rows) for array in arrays])
        return outputs

    return step


def taken(array: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns rows of an array, gathered on the CPU, which holds the arrays."""
    with tf.device("/cpu:0"):
        return tf.gather(array, rows)


def _any_length(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(shape[1:])
