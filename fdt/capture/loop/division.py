"""How a step of the script's own may be divided by rows: it is tried.

Keras's losses say by themselves what they average over; a step of the script's own does not, so it is tried: on the
script's first batch and on the same rows twice. What stays as it was is a mean over rows, what doubles is a sum, what gets
twice as many rows goes row by row.
"""

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.loop.arguments import Arguments
from fdt.capture.loop.prints import is_printed
from fdt.capture.step.trial import Trial, Tried, cause, check_as_if_padded
from fdt.capture.step.trial_holes import IndivisibleError
from fdt.capture.step.writes import draws

# How far from 1 or 2 the ratio of the two trials may be, where random layers draw other numbers in each.
_RANDOM_TOLERANCE = 0.3
_TOLERANCE = 1e-3
# How far a value put together from halves may be from that of the whole batch.
_ROUNDING = 1e-4


class Over(enum.Enum):
    """How what several workers made of their rows is put together."""

    MEAN = "mean"
    SUM = "sum"
    ROWS = "rows"
    # The same for any number of rows; whole numbers, texts and truth values.
    SAME = "same"


# Where random layers draw other numbers in each trial, the squared lengths of gradients are compared. Those of a mean get
# shorter, as its noise is averaged over more rows: between 0.5 and 1. Those of a sum get longer: between 2 and 4.
_RANDOM_SQUARES = ((Over.MEAN, 0.3, 2**0.5), (Over.SUM, 2**0.5, 6.0))


class Division:
    """How a step is divided by rows: one entry for each of its holes, outputs, and additions to variables.

    Attributes:
        gradients: Of each gradient hole.
        outputs: Of each output.
        additions: Of each addition, in the order of the trace.
        tells: Whether there were gradients to tell.
        was_compared: Whether gradients of parts of a batch were found to add up to those of the whole.
    """

    def __init__(self, gradients: Sequence[Over], outputs: Sequence[Over], additions: Sequence[Over]):
        self.gradients, self.outputs, self.additions = list(gradients), list(outputs), list(additions)
        self.tells, self.was_compared = True, False


class _Divider:
    """Reads off a trial how a step is divided."""

    def __init__(self, trial: Trial):
        self._trial, self._outputs = trial, trial.outputs
        graph = trial.concrete.graph
        self._inputs = {t.op.name for t in graph.inputs[1 : len(graph.inputs) - len(graph.captures)]}

    def divide(self, half: Tried, whole: Tried) -> Division:
        """Compares what the step made of some rows, as one of two workers, with what it made of the same rows twice, alone.

        Raises:
            IndivisibleError: It cannot be divided by rows.
        """
        tensors = [addition.tensor for addition in self._trial.additions]
        return Division(
            [self._of_gradients(n, *pair) for n, pair in enumerate(zip(half.gradients, whole.gradients, strict=True))],
            [
                self._of_output(n, *of)
                for n, of in enumerate(zip(self._outputs, half.outputs, whole.outputs, strict=True))
            ],
            [self._of_value(n, *of) for n, of in enumerate(zip(tensors, half.additions, whole.additions, strict=True))],
        )

    def check_outputs(self, division: Division, share: float, one: Tried, other: Tried, whole: Tried) -> None:
        """Compares what two parts of a batch give, put together, with what all of it gives; `share` is the first one's.

        Raises:
            IndivisibleError: It is not the same.
        """
        for number, over in enumerate(division.outputs):
            if over in (Over.MEAN, Over.SUM):
                weights = (share, 1 - share) if over is Over.MEAN else (1.0, 1.0)
                parts = [np.asarray(tried.outputs[number], np.float64) for tried in (one, other)]
                together = weights[0] * parts[0] + weights[1] * parts[1]
                if not _close(np.asarray(whole.outputs[number], np.float64), together, _ROUNDING):
                    if is_printed(self._outputs[number]):
                        division.outputs[number] = Over.SAME
                        continue
                    what = f"{np.ravel(whole.outputs[number])[:1]} of the batch, but {np.ravel(together)[:1]} of its halves"
                    raise IndivisibleError(_strange(number, what))

    def _of_gradients(self, number: int, half: np.ndarray, whole: np.ndarray) -> Over:
        square = float(half @ half)
        ratio = float(half @ whole) / square if square else 1.0
        if not self._trial.is_exact:
            ratio = (float(whole @ whole) / square) ** 0.5 if square else 1.0
            for over, least, most in _RANDOM_SQUARES:
                if least <= ratio**2 < most:
                    return over
        for over, expected in ((Over.MEAN, 1.0), (Over.SUM, 2.0)):
            difference = float(np.linalg.norm(whole - expected * half))
            if difference <= _TOLERANCE * float(np.linalg.norm(whole)):
                return over
        raise IndivisibleError(
            f"the loss behind its gradients (number {number + 1}) is neither a mean over the rows of the batch nor a sum over "
            f"them (on the same rows twice they are {ratio:.3f} times as large, expected: 1 or 2)"
        )

    def _of_output(self, number: int, tensor: Any, half: Any, whole: Any) -> Over:
        try:
            return self._of_value(number, tensor, half, whole)
        except IndivisibleError:
            if not is_printed(tensor):
                raise
            # What is only printed is no reason not to divide the step: the first worker's is.
            return Over.SAME

    def _of_value(self, number: int, tensor: Any, half: Any, whole: Any) -> Over:
        if half is None or (not self._follows_inputs(tensor) and np.array_equal(half, whole)):
            return Over.SAME
        if np.shape(half) != np.shape(whole):
            if np.shape(whole) != (2 * np.shape(half)[0], *np.shape(half)[1:]):
                what = f"of shape {np.shape(half)} and, on the same rows twice, {np.shape(whole)}"
                raise IndivisibleError(_strange(number, what))
            return Over.ROWS
        if not np.issubdtype(np.asarray(half).dtype, np.number):
            raise IndivisibleError(_strange(number, f"of type {np.asarray(half).dtype}"))
        a, b = np.asarray(half, np.float64), np.asarray(whole, np.float64)
        if not a.any() and not b.any():
            # Nothing to be seen by numbers.
            return _by_operation(tensor)
        if not np.issubdtype(np.asarray(half).dtype, np.floating):
            if np.array_equal(a, b):
                return Over.SAME
            if not self._trial.is_exact or np.array_equal(2 * a, b):
                return Over.SUM
        tolerance = _TOLERANCE if self._trial.is_exact else _RANDOM_TOLERANCE
        for over, expected in ((Over.MEAN, 1.0), (Over.SUM, 2.0)):
            if _close(b, expected * a, tolerance):
                return over
        reduction = None if self._trial.is_exact else _reduction(tensor)
        if reduction is not None:
            # The numbers drawn make more of a difference than the number of rows.
            return reduction
        what = f"{a.reshape(-1)[:1]} and, on the same rows twice, {b.reshape(-1)[:1]}"
        raise IndivisibleError(_strange(number, what))

    def _follows_inputs(self, tensor: tf.Tensor) -> bool:
        if tensor.graph is not self._trial.concrete.graph:
            return True  # in a loop or branch
        waiting, seen = [tensor.op], set()
        while waiting:
            operation = waiting.pop()
            if operation.name in self._inputs or draws(operation.type):
                return True
            if operation.name not in seen:
                seen.add(operation.name)
                waiting += [t.op for t in operation.inputs]
        return False


def divide(step: Trial, twice: Trial, arguments: Arguments) -> Division:
    """Tries a step.

    Args:
        step: Traced for any number of rows, or for those of one worker.
        twice: The same, or traced for twice as many.
        arguments: Of the script's first call.

    Raises:
        IndivisibleError: It cannot be divided by rows.
    """
    try:
        return _divide(step, twice, arguments)
    except tf.errors.OpError as error:
        raise IndivisibleError(
            f"with another number of rows than {arguments.num_rows} it fails ({cause(error)}); if the number is written out "
            "in its code, take it from the data (tf.shape(x)[0])"
        ) from None


def _divide(step: Trial, twice: Trial, arguments: Arguments) -> Division:
    arrays = [tf.constant(array) for array in arguments.encode()]
    rows = arguments.form.rows or arguments.num_rows or 1
    part = [array[:rows] for array in arrays]
    same_rows_twice = [tf.concat([array, array], 0) for array in part]
    trials = [(step, twice)]
    constant = step.with_constant_draws(), twice.with_constant_draws()
    if constant[0] and constant[1]:
        trials.insert(0, (constant[0], constant[1]))
    for step, twice in trials:
        half, whole = step.run(0.5, part), twice.run(1.0, same_rows_twice)
        tells = half.tells and whole.tells
        if tells:
            break
    divider = _Divider(step)
    division = divider.divide(half, whole)
    division.tells = tells
    # Two equal parts, and all of both.
    first = rows if arguments.form.rows else rows // 2
    if not step.is_exact or not first:
        return division
    halves = step.run_two(0.5, [array[:first] for array in arrays], [array[first : 2 * first] for array in arrays])
    if halves is None:
        return division
    together = twice.run(1.0, [array[: 2 * first] for array in arrays])
    are_sums = [over is Over.SUM for over in division.gradients]

    def check(together: Tried, halves: tuple[Tried, Tried]) -> None:
        step.check_gradients(are_sums, 0.5, *halves, together)
        step.check_kept(*halves, together)
        divider.check_outputs(division, 0.5, *halves, together)

    check(together, halves)
    if step is twice:
        check_as_if_padded(step, [array[: 2 * first].numpy() for array in arrays], check)
    division.was_compared = together.shows
    return division


def _close(value: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    absolute = tolerance * float(np.max(np.abs(value), initial=0.0))
    return np.allclose(value, expected, rtol=tolerance, atol=absolute, equal_nan=True)


def _by_operation(tensor: tf.Tensor) -> Over:
    """Tells a mean from a sum by the operation that computes it; whole numbers are counts."""
    if not tensor.dtype.is_floating:
        return Over.SUM
    return _reduction(tensor) or Over.MEAN


def _reduction(tensor: tf.Tensor) -> Over | None:
    """Returns whether a tensor's last reduction is a mean or a sum; None if it has none of these."""
    operation = tensor.op
    while operation.type not in ("Mean", "Sum") and operation.inputs:
        if operation.type in ("RealDiv", "DivNoNan") and operation.inputs[1].op.type not in ("Const", "ReadVariableOp"):
            return Over.MEAN
        operation = operation.inputs[0].op
    return {"Mean": Over.MEAN, "Sum": Over.SUM}.get(operation.type)


def _strange(number: int, what: str) -> str:
    return (
        f"its output number {number + 1} is {what}: neither a mean over the rows of the batch, nor a sum, nor one value for "
        "each row; if the loop can do without it, compute it outside the step"
    )
