"""A tensor of the script's step as the divided step has it."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.program.body import Spec, Wire
from fdt.program.layout import WHOLE, Divided, Layout

# Of a tensor; None for an unknown rank, or for the size of a dimension.
Shape = tuple[int | None, ...] | None
# What all elements of a list are: type, shape and bytes of a constant; () of an empty list; None if that is not known.
Elements = tuple[()] | tuple[str, tuple[int, ...], bytes] | None


@dataclasses.dataclass(eq=False)
class Value:
    """What the workers whose parts a function holds have in the place of one tensor.

    Attributes:
        layout: What a worker holds of it.
        source: Name of the operation of the script's step whose output it is.
        shape: Of the whole tensor.
        dtype: Of its elements.
        tensors: One for each of these workers; of a whole value the same one. Of a constant none, until it is used.
        constant: Its elements, where they are known while the step is divided.
        handle: Of a resource, a tensor that tells what it holds.
        remake: Makes the value in another layout of elements; only of lists that hold nothing yet.
        whole: Makes it whole without an exchange; of an input of the step, which every worker can read in full.
        cut: Makes it divided by computing it from divided inputs; of a whole value that was computed entry by entry. None where
            that cannot be.
        again: Makes it whole by computing it from whole inputs; of a sum in parts that follows from another.
    """

    layout: Layout
    source: str
    shape: Shape
    dtype: tf.DType
    tensors: tuple[Wire, ...] = ()
    constant: np.ndarray | None = None
    handle: Any = None
    remake: "Callable[[Layout], Value] | None" = None
    whole: Callable[[], Wire] | None = None
    again: "Callable[[], Value] | None" = None
    cut: "Callable[[Divided], Value | None] | None" = None
    # Of a list all of whose elements are one constant, that constant; () of one that is empty so far.
    elements: Elements = None
    # Of integers that are not all known: the first; what the only one is at least. See `sizes.py`.
    first: int | None = None
    at_least: int | None = None
    # How many rows each worker had, where it took its own for the batch (see `own_rows`): what is whole then differs.
    own_rows: tuple[int, ...] | None = None
    # Of a constant, where it was used last.
    made: Wire | None = None
    # Which output of which operation it is, calls included.
    key: str = ""
    # The same value in other layouts, as far as somebody has needed them.
    others: "dict[Layout, list[Value]]" = dataclasses.field(default_factory=dict)

    def spec(self, rank: int) -> Spec:
        """Returns what a worker's own tensor is."""
        shape = self.shape
        if isinstance(self.layout, Divided) and shape is not None and self.dtype != tf.variant:
            dim = self.layout.dim
            shape = (*shape[:dim], self.layout.sizes[rank], *shape[dim + 1 :])
        return Spec(self.dtype, shape)

    def held(self, layout: Layout, tensors: Sequence[Wire]) -> "Value":
        """Returns the same as workers hold it in another layout."""
        return Value(layout, self.source, self.shape, self.dtype, tuple(tensors), handle=self.handle)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor; 0 where its shape is not known."""
        if self.shape is None or None in self.shape or self.dtype in (tf.variant, tf.resource, tf.string):
            return 0
        return math.prod(size or 0 for size in self.shape) * int(self.dtype.size)


def known(constant: np.ndarray, source: str) -> Value:
    """Returns a whole value whose elements are known."""
    return Value(WHOLE, source, constant.shape, tf.as_dtype(constant.dtype), constant=constant)
