"""A worker's gradients for one shard."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Of parameters that are kept together.

    Attributes:
        vectors: For each vector of the layout a tensor for each entry: beside the worker nobody has to lay them out one after
            the other.
        rows: For each table that has a gradient (values [number, ...], indices [number]); a row may come more than once.
        extras: As the cut has them.
    """

    vectors: list[list[tf.Tensor]]
    rows: list[tuple[tf.Tensor, tf.Tensor]]
    extras: list[tf.Tensor]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """All of them."""
        return list(tf.nest.flatten([self.vectors, self.rows, self.extras]))

    def mapped(self, function: Callable[[tf.Tensor], tf.Tensor]) -> "Gradients":
        """Returns the same of other tensors."""
        return Gradients(*tf.nest.map_structure(function, [self.vectors, self.rows, self.extras]))
