"""Represents a tensor of the script's step in the divided step."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.program.body import Spec, Wire
from fdt.program.layout import WHOLE, Divided, Layout, Owned
from fdt.program.size import Dim, Size, value_of

# A tensor's shape; None for an unknown rank or size.
Shape = tuple[Dim | None, ...] | None
# What all tensors in a list equal: their type, shape and entries; () for an empty list; None if not known.
Elements = tuple[()] | tuple[tf.DType, tuple[int, ...], tuple[Any, ...]] | None


@dataclasses.dataclass(eq=False)
class Value:
    """The tensors of the workers built in a function that stand for one tensor of the step.

    Attributes:
        layout: What a worker holds of it.
        source: Name of the script's operation whose output it is.
        shape: The whole tensor's shape.
        dtype: The elements' type.
        tensors: One for each of these workers; the same one for a whole value; none for a constant until it is used.
        constant: Its elements, if they are known while the step is divided.
        sizes: Its elements, if they are sizes that differ from batch to batch: an array of numbers and `Size`s.
        handle: For a resource, a handle tensor, which has the type and shape of its content.
        remake: For an empty list: makes it with another layout of its elements.
        whole: For a step's input that every worker can read in full: makes it whole without an exchange.
        cut: For a whole value that was computed entry by entry: makes it divided by computing it from divided inputs; returns
            None if that is not possible.
        again: For a partial sum computed from another one: makes it whole by computing it from whole inputs.
    """

    layout: Layout
    source: str
    shape: Shape
    dtype: tf.DType
    tensors: tuple[Wire, ...] = ()
    constant: np.ndarray | None = None
    sizes: np.ndarray | None = None
    handle: Any = None
    remake: "Callable[[Layout], Value] | None" = None
    whole: Callable[[], Wire] | None = None
    again: "Callable[[], Value] | None" = None
    cut: "Callable[[Divided], Value | None] | None" = None
    # For a list: see `Elements`.
    elements: Elements = None
    # Whether its elements are computed of sizes that differ from batch to batch, when the step runs.
    is_of_sizes: bool = False
    # For a cast of sizes to another type: the sizes.
    cast_of: np.ndarray | None = None
    # For entries with the layout `Owned`: whether they are the rows' numbers in the variable.
    row_numbers: bool = False
    # For entries with the layout `Owned`, of numbers each of which is an entry's place among others on its worker (what Unique
    # returns second): the layout of these.
    places: Owned | None = None
    # For integers that are not constant: the first one; a lower bound of a single one. See `ragged.py`.
    first: Dim | None = None
    at_least: Dim | None = None
    # Each worker's number of rows, if it used its own rows as the batch (see `own_rows`): whole values then differ.
    own_rows: tuple[int, ...] | None = None
    # For a constant: its tensor in the function where it was used last.
    made: Wire | None = None
    # Identifies the output: path of calls, operation, index.
    key: str = ""
    # The same value in the other layouts made so far.
    others: "dict[Layout, list[Value]]" = dataclasses.field(default_factory=dict)

    @property
    def elements_known(self) -> np.ndarray | None:
        """Its elements, if they are known while the step is divided: numbers, or numbers and sizes."""
        return self.constant if self.constant is not None else self.sizes

    def spec(self, rank: int) -> Spec:
        """Returns the spec of a worker's own tensor."""
        shape = self.shape
        if isinstance(self.layout, Divided) and shape is not None and self.dtype != tf.variant:
            dim = self.layout.dim
            shape = (*shape[:dim], self.layout.sizes[rank], *shape[dim + 1 :])
        if isinstance(self.layout, Owned) and shape:
            shape = (None, *shape[1:])
        static = None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)
        return Spec(self.dtype, static)

    def held(self, layout: Layout, tensors: Sequence[Wire]) -> "Value":
        """Returns the same value in another layout, given its tensors."""
        return Value(layout, self.source, self.shape, self.dtype, tuple(tensors), handle=self.handle)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor, for the batch with which the step is divided; 0 where its shape is not known."""
        shape = self.shape
        if shape is None or any(size is None for size in shape) or self.dtype in (tf.variant, tf.resource, tf.string):
            return 0
        return math.prod(map(value_of, shape)) * int(self.dtype.size)


def known(constant: np.ndarray, source: str, dtype: tf.DType | None = None) -> Value:
    """Returns a whole value whose elements are known.

    Args:
        constant: The elements; an array of objects where `Size`s may be among them.
        source: See `Value`.
        dtype: The elements' type, for an array of objects.
    """
    if dtype is None or constant.dtype != object:
        return Value(WHOLE, source, constant.shape, tf.as_dtype(constant.dtype), constant=constant)
    if not any(isinstance(element, Size) for element in constant.flat):
        return Value(WHOLE, source, constant.shape, dtype, constant=constant.astype(dtype.as_numpy_dtype))
    return Value(WHOLE, source, constant.shape, dtype, sizes=constant)
