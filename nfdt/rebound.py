"""Calls one traced function on the variables and tables of any worker."""

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf


class Resource(Protocol):
    """A variable or a table."""

    @property
    def handle(self) -> tf.Tensor:
        """What a graph captures of it."""


class Rebound:
    """A traced function of tensors. Captures other than the variables and tables are shared by all workers."""

    def __init__(self, concrete: Any, resources: Sequence[Resource]):
        """Notes which resources the function captures.

        Args:
            concrete: ConcreteFunction.
            resources: The variables and tables with which it was traced.
        """
        self._concrete = concrete
        positions = {id(resource.handle): i for i, resource in enumerate(resources)}
        self._captured = [positions.get(id(capture), capture) for capture in concrete.captured_inputs]

    def __call__(self, resources: Sequence[Resource], arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the function on other resources of the same shapes and types.

        Args:
            resources: In the order of the resources with which it was traced.
            arguments: The function's arguments, flat.
        """
        handles = [resources[c].handle if isinstance(c, int) else c for c in self._captured]
        # A ConcreteFunction has no public way to be called with other captures; `__call__` itself ends in this method.
        return tf.nest.flatten(self._concrete._call_flat(list(arguments), captured_inputs=handles))  # type: ignore[no-any-return]
