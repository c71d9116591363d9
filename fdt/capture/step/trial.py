"""A step is tried: on the script's first batch, its gradients are looked at and go nowhere.

Each worker computes on its rows. What it makes of them must be put together so that it is what one machine makes of the
whole batch; where the graph does not tell whether it is, a trial on parts of a batch does.
"""

import contextlib
import copy
import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.step.constant_draws import with_constant_draws
from fdt.capture.step.trial_holes import IndivisibleError, RunningSum, TrialHoles, Turn

# Said of a step that is divided although no trial has shown that it may be.
NOT_COMPARED = (
    "what parts of a batch give could not be compared with what all of it gives (no gradients at first, or numbers drawn in a "
    "loop of the graph): the step is divided as its graph reads (fdt verify tells)"
)
# How far gradients put together from those of two parts may be from those of the whole, as vectors: in single precision
# (1e-7 is usual, 1.1e-5 was seen of a deep convolutional net), and where some of the step is computed in half.
_ROUNDING_OF_GRADIENTS, _ROUNDING_OF_HALVES = 5e-5, 1e-2
# The same of a variable's change, and of its value.
_ROUNDING_OF_STATE, _LAST_DIGITS = 1e-4, 1e-6
# Of a batch, enough to tell; it may be that the script's machine computes slowly.
_MAX_ROWS = 64
# How often what is handed over may stand on what was handed over before.
_MAX_ROUNDS = 6


@dataclasses.dataclass(frozen=True)
class Tried:
    """What a step made of some rows.

    Attributes:
        gradients: Of each gradient hole one vector.
        outputs: None for one that does not travel.
        additions: To variables of the script's own.
        passed: What was handed over at holes at which workers put something together.
        kept: What variables that follow the batch were before and afterwards.
    """

    gradients: list[np.ndarray]
    outputs: list[Any]
    additions: list[Any]
    passed: list[np.ndarray]
    kept: list[tuple[np.ndarray, np.ndarray]]

    @property
    def tells(self) -> bool:
        """Whether there are gradients to be compared."""
        return all(gradient.any() and np.isfinite(gradient).all() for gradient in self.gradients)

    @property
    def shows(self) -> bool:
        """Whether something of each gradient can be compared: numbers, and not all of them zero."""
        return all(np.any(gradient[np.isfinite(gradient)]) for gradient in self.gradients)

    @property
    def is_finite(self) -> bool:
        """Whether all that it made are numbers."""
        values = [*self.gradients, *self.outputs, *(value for _, value in self.kept)]
        floating = [v for v in values if v is not None and np.issubdtype(np.asarray(v).dtype, np.inexact)]
        return all(np.isfinite(value).all() for value in floating)


class Put(enum.Enum):
    """How what workers keep in a variable is put together."""

    SUMMED = "added up"
    AVERAGED = "averaged"
    FIRST = "or one of them"


class Trial:
    """A step traced for trial.

    Attributes:
        concrete: ConcreteFunction of step(share, *batch).
        holes: Its.
        additions: Those to variables of the script's own.
        outputs: Its outputs; None for one that does not travel.
    """

    def __init__(
        self,
        concrete: Any,
        holes: TrialHoles,
        additions: Sequence[RunningSum],
        outputs: Sequence[Any],
        kept: Sequence[tuple[tf.Variable, str, Put]],
        draws: bool,
        looks_across: bool,
    ):
        """Takes what was traced.

        Args:
            concrete: ConcreteFunction of step(share, *batch).
            holes: Its.
            additions: Those to variables of the script's own.
            outputs: Its outputs; None for one that does not travel.
            kept: Variables that follow the batch; what they are called.
            draws: Whether the step draws random numbers.
            looks_across: Whether it has a layer that looks across the batch on purpose.
        """
        self.concrete, self.holes, self.additions, self.outputs = concrete, holes, additions, outputs
        self._function, self._kept, self._draws, self._looks_across = concrete, kept, draws, looks_across
        graph = concrete.graph
        dtypes = {t.dtype for operation in graph.get_operations() for t in operation.outputs}
        # A GPU takes other kernels for other numbers of rows.
        is_rough = bool(dtypes & {tf.float16, tf.bfloat16} or tf.config.list_logical_devices("GPU"))
        self._rounding = _ROUNDING_OF_HALVES if is_rough else _ROUNDING_OF_GRADIENTS

    def run(
        self, share: float, batch: Sequence[tf.Tensor], turn: Turn = Turn.ALIKE, others: Sequence[np.ndarray] = ()
    ) -> Tried:
        """Runs the step as one of 1 / share workers; the script's variables are as before afterwards."""
        before = {v.ref(): v.numpy().copy() for v in [*self.concrete.graph.variables, *(v for v, *_ in self._kept)]}
        self.holes.begin(turn, others)
        try:
            tensors = iter(self._function(tf.constant(share), *batch))
            outputs = [next(tensors).numpy() if tf.is_tensor(output) else None for output in self.outputs]
            return Tried(
                [_vector([gradient.take() for gradient in hole]) for hole in self.holes.sums],
                outputs,
                [total.take() for total in self.additions],
                [exchanged.given() for exchanged in self.holes.exchanged],
                [(before[v.ref()], v.numpy().copy()) for v, *_ in self._kept],
            )
        finally:
            for reference, value in before.items():
                reference.deref().assign(value)

    def with_constant_draws(self) -> "Trial | None":
        """Returns a trial that compares, because it draws the same number everywhere; None if there is none."""
        function = with_constant_draws(self.concrete) if self._draws else None
        if function is None:
            return None
        trial = copy.copy(self)
        trial._function, trial._draws = function, False
        return trial

    @property
    def is_exact(self) -> bool:
        """Whether the same rows give the same, whatever others there are."""
        return not (self._draws or self._looks_across)

    def run_two(self, share: float, one: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tuple[Tried, Tried] | None:
        """Runs the step as each of two workers in turn, each with what the other one hands over.

        What it hands over may stand on what it was handed before: it is run again until that stays the same.

        Args:
            share: The first one's.
            one: Its rows.
            other: The second one's.

        Returns:
            What they made of their rows; None if it does not stay the same.
        """
        tried = self.run(share, one), self.run(1 - share, other)
        for _ in range(_MAX_ROUNDS if self.holes.exchanged else 0):
            first, second = tried
            tried = (
                self.run(share, one, Turn.FIRST, second.passed),
                self.run(1 - share, other, Turn.SECOND, first.passed),
            )
            if all(map(_equal, first.passed + second.passed, tried[0].passed + tried[1].passed)):
                return tried
        return None if self.holes.exchanged else tried

    def run_divided(self, arrays: Sequence[np.ndarray]) -> tuple[Tried, tuple[Tried, Tried]] | None:
        """Runs the step on a batch, and as two workers on a half of it each.

        Args:
            arrays: Of the batch, [rows, ...], an even number of rows.

        Returns:
            What was made of all, and of the halves; None as for `run_two`.
        """
        tensors, half = list(map(tf.constant, arrays)), len(arrays[0]) // 2
        whole = self.run(1.0, tensors)
        halves = self.run_two(0.5, [tensor[:half] for tensor in tensors], [tensor[half:] for tensor in tensors])
        return None if halves is None else (whole, halves)

    def check_gradients(self, are_sums: Sequence[bool], share: float, one: Tried, other: Tried, whole: Tried) -> None:
        """Compares gradients of two parts of a batch, put together, with those of all of it.

        Args:
            are_sums: Of each hole, whether what passes it is a sum over rows, no mean.
            share: The first part's.
            one: What was made of the first part.
            other: Of the second one.
            whole: Of all.

        Raises:
            IndivisibleError: They are not the same.
        """
        parts = zip(are_sums, self.holes.are_weighted, one.gradients, other.gradients, whole.gradients, strict=True)
        for is_sum, is_weighted, a, b, c in parts:
            together = a + b if is_sum or is_weighted else a * share + b * (1 - share)
            # Where the whole gives no number (the root of zero), nothing compares; where parts alone give none, they differ.
            known = np.isfinite(c)
            size = float(np.linalg.norm(c[known]))
            difference = float(np.linalg.norm((c - together)[known])) / size if size else 0.0
            if not difference <= self._rounding:
                states = ", ".join(repr(name) for _, name, put in self._kept if put is not Put.SUMMED)
                kept = f" (it keeps something of each in {states})" if states else ""
                raise IndivisibleError(
                    f"the loss looks across the rows of a batch{kept}: gradients of two halves, put together, differ by "
                    f"{difference:.1e} from those of the whole"
                )

    def check_kept(self, one: Tried, other: Tried, whole: Tried) -> None:
        """Compares what equal parts of a batch leave in variables, put together, with what all of it does.

        Raises:
            IndivisibleError: It is not the same.
        """
        for (_, name, put), *values in zip(self._kept, one.kept, other.kept, whole.kept, strict=True):
            (before, a), (_, b), (_, expected) = values
            together = a
            if put is not Put.FIRST:
                together = (a + b) / 2 if put is Put.AVERAGED else a + b - before
            if not self._is_close(together, before, expected):
                raise IndivisibleError(
                    f"what it keeps of a batch in {name!r} is not what two halves of the batch give, {put.value}"
                )

    def check_outputs(self, one: Tried, other: Tried, whole: Tried) -> None:
        """Compares what equal parts of a batch return, averaged (whole numbers: the first), with what all of it does.

        Raises:
            IndivisibleError: It is not the same.
        """
        for number, (a, b, expected) in enumerate(zip(one.outputs, other.outputs, whole.outputs, strict=True)):
            if expected is None:
                continue
            together = (a + b) / 2 if np.issubdtype(expected.dtype, np.inexact) else a
            if together.shape != expected.shape or not self._is_close(together, np.zeros_like(expected), expected):
                raise IndivisibleError(
                    f"what it returns (number {number + 1}) is not what two halves of the batch give, averaged"
                )

    def _is_close(self, together: np.ndarray, before: np.ndarray, expected: np.ndarray) -> bool:
        """Whether a variable's value is the expected one, but for the rounding of its change, and of its digits."""
        if not np.issubdtype(expected.dtype, np.floating):
            return np.array_equal(together, expected)
        known = np.isfinite(expected)
        value, change = expected[known], (expected - before)[known]
        limit = max(self._rounding, _ROUNDING_OF_STATE) * np.max(np.abs(change), initial=0.0)
        limit += _LAST_DIGITS * np.max(np.abs(value), initial=0.0)
        # Not `>`: parts of a few rows may give what is no number.
        return bool(np.all(np.abs(together[known] - value) <= limit))


def adds_up(trial: Trial, batch: Sequence[np.ndarray]) -> bool:
    """Compares what two halves of a batch give, put together, with what all of it gives.

    Args:
        trial: Of a step whose gradients are means over rows, as far as the graph tells.
        batch: Its arrays, [rows, ...]; the first ones are taken.

    Returns:
        Whether it is the same; False if that cannot be told.

    Raises:
        IndivisibleError: It is not the same.
    """
    trial = trial.with_constant_draws() or trial
    half = min(len(batch[0]), _MAX_ROWS) // 2
    if not trial.is_exact or not half:
        return False
    arrays = [array[: 2 * half] for array in batch]
    try:
        found = trial.run_divided(arrays)
    except tf.errors.OpError as error:
        raise IndivisibleError(f"with another number of rows than {len(batch[0])} it fails ({cause(error)})") from None
    if found is None:
        return False
    whole, halves = found

    def check(whole: Tried, halves: tuple[Tried, Tried]) -> None:
        trial.check_gradients([False] * len(whole.gradients), 0.5, *halves, whole)
        trial.check_kept(*halves, whole)
        trial.check_outputs(*halves, whole)

    check(whole, halves)
    check_as_if_padded(trial, arrays, check)
    return whole.shows


def check_as_if_padded(
    trial: Trial, arrays: Sequence[np.ndarray], check: Callable[[Tried, tuple[Tried, Tried]], None]
) -> None:
    """Compares once more, on a batch whose halves differ in what is padding; where that makes no numbers, nothing is said."""
    with contextlib.suppress(tf.errors.OpError):
        found = trial.run_divided(as_if_padded(arrays))
        if found is not None and all(tried.is_finite for tried in (found[0], *found[1])):
            check(*found)


def as_if_padded(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns a batch whose second half of rows is shorter, as far as that can be guessed.

    A first batch whose rows are all of one length does not show what a step makes of padding: of what has several entries a
    row, the second half of them becomes zeros; whole numbers, one a row, lengths or labels, are halved.
    """
    padded = []
    for array in arrays:
        changed, rows = array.copy(), slice(len(array) // 2, None)
        if array.ndim > 1:
            changed[rows, array.shape[1] // 2 + 1 :] = np.zeros([], array.dtype)
        elif np.issubdtype(array.dtype, np.integer):
            changed[rows] = np.where(array[rows] > 1, array[rows] // 2, array[rows])
        padded.append(changed)
    return padded


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=bool(np.issubdtype(one.dtype, np.inexact)))


def cause(error: tf.errors.OpError) -> str:
    """Returns, in words, why an operation failed."""
    lines = [line for line in str(error.message).splitlines() if line.strip() and not line.startswith("\t")]
    return lines[-1].strip() if lines else type(error).__name__


def _vector(gradients: Sequence[np.ndarray | None]) -> np.ndarray:
    """Returns gradients as one vector; that of a hole that was not come by is empty."""
    present = [np.ravel(gradient) for gradient in gradients if gradient is not None]
    return np.concatenate([*present, np.zeros(0)], dtype=np.float64)
