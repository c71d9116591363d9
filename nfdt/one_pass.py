"""Updates parameters in one pass over memory, by a formula for each entry that was compiled with this package."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from fdt.base.native import library
from fdt.program.update.formula import Formula
from nfdt.compensation import Late, settings

# From the update's inputs, by their placeholders, to tensors.
OfGiven = Callable[[Mapping[str, tf.Tensor]], Sequence[tf.Tensor]]


class OnePass:
    """Updates a vector of parameters and the vectors of its optimizer state in place."""

    def __init__(
        self,
        formula: Formula,
        scalars: OfGiven,
        variables: Sequence[tf.Variable],
        places: Sequence[int],
    ):
        """
        Args:
            formula: A compiled one.
            scalars: Returns the formula's scalars, given the update's inputs.
            variables: The parameters first, [sum of places].
            places: How many entries each tensor of the gradient takes.
        """
        self._formula, self._scalars, self._variables, self._places = formula, scalars, variables, list(places)

    def __call__(
        self, tensors: Sequence[tf.Tensor], given: Mapping[str, tf.Tensor], late: Late | None = None
    ) -> tf.Tensor:
        """Applies a gradient.

        Args:
            tensors: The gradient, one tensor for each of `places`.
            given: The update's inputs, by their placeholders.
            late: How to compensate it first; None for no compensation.

        Returns:
            float32 [2], Σ c² and Σ g²; zeros without a delay.
        """
        zero = tf.zeros([], tf.int64)
        remembered = [v.handle for v in (late.moved, late.mean_square) if v is not None] if late is not None else []
        return library("nfdt").ops.fdt_update(
            gradients=list(tensors),
            scalars=self._scalars(given),
            variables=[variable.handle for variable in self._variables],
            then=[late.then] if late is not None else [],
            remembered=remembered,
            delay=late.delay if late is not None else zero,
            version=late.version if late is not None else zero,
            settings=settings(late.rule) if late is not None else tf.zeros([4], tf.float64),
            formula=self._formula.name,
            places=self._places,
            correct=late is not None and late.rule.correct,
        )


class TablePass:
    """Updates every row of a table and of the tables of its optimizer state, in place."""

    def __init__(
        self,
        formula: Formula,
        scalars: OfGiven,
        variables: Sequence[tf.Variable],
        summed: OfGiven,
    ):
        """
        Args:
            formula: A compiled one.
            scalars: Returns the formula's scalars, given the update's inputs.
            variables: The table first, [rows, ...].
            summed: Returns the values, [number, ...], whose sums by row are the formula's gradients.
        """
        self._formula, self._scalars, self._variables, self._summed = formula, scalars, variables, summed

    def __call__(self, indices: tf.Tensor, order: tf.Tensor, given: Mapping[str, tf.Tensor]) -> None:
        """Applies a gradient.

        Args:
            indices: The row of each value, [number]; an index may come more than once.
            order: From `nfdt.rows.by_row`.
            given: The update's inputs, by their placeholders.
        """
        library("nfdt").ops.fdt_update_table(
            gradients=list(self._summed(given)),
            indices=indices,
            order=order,
            scalars=self._scalars(given),
            variables=[variable.handle for variable in self._variables],
            formula=self._formula.name,
        )
