"""The part of an update that is one pass over memory: a formula for each entry, compiled when this package was installed."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from fdt.native import library
from nfdt.formula import Formula

_NATIVE = library("nfdt")


class OnePass:
    """Updates a vector of parameters, and one like it for each kind of optimizer state, where they are."""

    def __init__(
        self,
        formula: Formula,
        scalars: Callable[[Mapping[str, tf.Tensor]], Sequence[tf.Tensor]],
        gradient: str,
        variables: Sequence[tf.Variable],
        places: Sequence[int],
    ):
        """
        Args:
            formula: A compiled one.
            scalars: Returns those of the formula, given what comes in.
            gradient: Under what the gradient comes in.
            variables: The parameters first, [sum of places].
            places: How many entries each tensor of the gradient takes.
        """
        self._formula, self._scalars, self._gradient = formula, scalars, gradient
        self._variables, self._places = variables, list(places)

    def __call__(self, given: Mapping[str, tf.Tensor]) -> None:
        """Applies gradients.

        Args:
            given: For each placeholder what comes in; others may be among them.
        """
        _NATIVE.ops.fdt_update(
            gradients=[given[self._gradient]],
            scalars=self._scalars(given),
            variables=[variable.handle for variable in self._variables],
            formula=self._formula.name,
            places=self._places,
        )
