"""A worker's gradients for one shard."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients of one shard's parameters.

    Attributes:
        vectors: For each vector of the layout a tensor for each entry: on the worker's own host they need not be joined.
        rows: For each table that has a gradient (values [number, ...], indices [number]); a row may come more than once.
        extras: In the order of `Cut.extras`.
    """

    vectors: list[list[tf.Tensor]]
    rows: list[tuple[tf.Tensor, tf.Tensor]]
    extras: list[tf.Tensor]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """All tensors, flat."""
        return list(tf.nest.flatten([self.vectors, self.rows, self.extras]))

    def mapped(self, function: Callable[[tf.Tensor], tf.Tensor]) -> "Gradients":
        """Returns the gradients with a function applied to each tensor."""
        return Gradients(*tf.nest.map_structure(function, [self.vectors, self.rows, self.extras]))
