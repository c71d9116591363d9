"""A tensor of the script's step as the divided step has it."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fdt.division.layout import Divided, Layout


@dataclasses.dataclass(eq=False)
class Value:
    """What the workers whose parts a graph holds have in the place of one tensor.

    Attributes:
        layout: What a worker holds of it.
        source: Name of the operation of the script's step whose output it is.
        tensors: One for each of these workers; of a whole value the same one.
        constant: Its elements, where they are known while the step is divided.
        remake: Makes the value in another layout of elements; only of lists that hold nothing yet.
        whole: Makes it whole without an exchange; of an input of the step, which every worker can read in full.
        cut: Makes it divided by computing it from divided inputs; of a whole value that was computed entry by entry. None where
            that cannot be.
        again: Makes it whole by computing it from whole inputs; of a sum in parts that follows from another.
    """

    layout: Layout
    source: str
    tensors: tuple[tf.Tensor, ...] = ()
    constant: np.ndarray | None = None
    remake: "Callable[[Layout], Value] | None" = None
    whole: Callable[[], tf.Tensor] | None = None
    again: "Callable[[], Value] | None" = None
    cut: "Callable[[Divided], Value | None] | None" = None
    # How many rows each worker had, where it took its own for the batch (see `own_rows`): what is whole then differs.
    own_rows: tuple[int, ...] | None = None
    # Of a constant, in the graph where it was used last.
    made: tf.Tensor | None = None
    # Which output of which operation it is, calls included.
    key: str = ""
    # The same value in other layouts, as far as somebody has needed them.
    others: "dict[Layout, list[Value]]" = dataclasses.field(default_factory=dict)

    @property
    def dtype(self) -> tf.DType:
        """The type of its elements."""
        return self.tensors[0].dtype if self.tensors else tf.as_dtype(self._constant().dtype)

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The shape of the whole tensor; None for an unknown rank, or for the size of a dimension."""
        if self.constant is not None:
            return self.constant.shape
        known = self.tensors[0].shape
        if known.rank is None:
            return None
        dims = list(known.as_list())
        if isinstance(self.layout, Divided) and self.dtype != tf.variant:
            dims[self.layout.dim] = self.layout.size
        return tuple(dims)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor; 0 where its shape is not known."""
        shape = self.shape
        if shape is None or any(size is None for size in shape) or self.dtype in (tf.variant, tf.resource, tf.string):
            return 0
        return math.prod(size or 0 for size in shape) * int(self.dtype.size)

    def _constant(self) -> np.ndarray:
        assert self.constant is not None
        return self.constant
