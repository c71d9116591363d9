"""One traced function for many workers: it is called on the variables of whoever calls."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Rebound:
    """A traced function of tensors that captures nothing but variables."""

    def __init__(self, concrete: Any, variables: Sequence[tf.Variable]):
        """Notes which variables it captures.

        Args:
            concrete: ConcreteFunction.
            variables: Those that it was traced with.
        """
        self._concrete = concrete
        positions = {id(variable.handle): i for i, variable in enumerate(variables)}
        self._captured = [positions[id(capture)] for capture in concrete.captured_inputs]

    def __call__(self, variables: Sequence[tf.Variable], arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs it on other variables of the same shapes and types.

        Args:
            variables: In the order of those that it was traced with.
            arguments: Flat.
        """
        handles = [variables[i].handle for i in self._captured]
        # A ConcreteFunction has no public way to be called on other captures; this one is what `__call__` ends in.
        return tf.nest.flatten(self._concrete._call_flat(list(arguments), captured_inputs=handles))  # type: ignore[no-any-return]
