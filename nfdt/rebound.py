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
    """A traced function of tensors. What it captures besides those variables and tables is the same for all."""

    def __init__(self, concrete: Any, resources: Sequence[Resource]):
        """Notes which of them it captures.

        Args:
            concrete: ConcreteFunction.
            resources: Those that it was traced with.
        """
        self._concrete = concrete
        positions = {id(resource.handle): i for i, resource in enumerate(resources)}
        self._captured = [positions.get(id(capture), capture) for capture in concrete.captured_inputs]

    def __call__(self, resources: Sequence[Resource], arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs it on others of the same shapes and types.

        Args:
            resources: In the order of those that it was traced with.
            arguments: Flat.
        """
        handles = [resources[c].handle if isinstance(c, int) else c for c in self._captured]
        # A ConcreteFunction has no public way to be called on other captures; this one is what `__call__` ends in.
        return tf.nest.flatten(self._concrete._call_flat(list(arguments), captured_inputs=handles))  # type: ignore[no-any-return]
