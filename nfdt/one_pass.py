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
        variables: Sequence[tf.Variable],
        places: Sequence[int],
    ):
        """
        Args:
            formula: A compiled one.
            scalars: Returns those of the formula, given what comes in.
            variables: The parameters first, [sum of places].
            places: How many entries each tensor of the gradient takes.
        """
        self._formula, self._scalars, self._variables, self._places = formula, scalars, variables, list(places)

    def __call__(self, tensors: Sequence[tf.Tensor], given: Mapping[str, tf.Tensor]) -> None:
        """Applies a gradient.

        Args:
            tensors: It, in as many tensors as there are places.
            given: What else comes in, by the placeholders that stand for it.
        """
        _NATIVE.ops.fdt_update(
            gradients=list(tensors),
            scalars=self._scalars(given),
            variables=[variable.handle for variable in self._variables],
            formula=self._formula.name,
            places=self._places,
        )
