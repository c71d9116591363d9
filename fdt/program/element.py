"""Encodes a batch as dense arrays of numbers whose first dimension is the batch, to send it and divide it by rows.

Most batches have this form already. Ragged tensors, sparse tensors and strings are padded to be sent, and restored at the
beginning of the step. If tensors of a batch differ in their numbers of rows (500 images without a label, 25 with one), rows are
grouped: 25 groups of 20 rows and of 1 row.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fdt.errors import UnsupportedError

# The spec of a None in the elements of a data set.
_NOTHING = tf.type_spec_from_value(None)


class Leaf(Protocol):
    """Encodes one tensor of a batch as arrays."""

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the arrays' specs; the first dimension of each is the batch."""

    def encode(self, value: Any) -> list[np.ndarray]:
        """Returns a value as arrays."""

    def decode(self, arrays: Sequence[tf.Tensor]) -> Any:
        """Returns the value for some rows of the arrays."""


class Element:
    """The structure of a data set's batches."""

    def __init__(self, structure: Any, flatten: Callable[[Any], list[Any]], pack: Callable[[Any, list[Any]], Any]):
        """Reads the structure.

        Args:
            structure: Nested structure of type specs; None and a data set's spec of None stay None.
            flatten: Flattens nested structures; None is a leaf, and a composite tensor is one leaf.
            pack: The inverse: packs new leaves into a structure.

        Raises:
            UnsupportedError: A leaf cannot travel, or has no batch dimension.
        """
        self._structure, self._flatten, self._pack = structure, flatten, pack
        self._leaves: list[Leaf | None] = [None if _is_nothing(s) else _leaf(s) for s in flatten(structure)]
        self._rows: int | None = None
        # Each leaf's number of rows; None if it is not known.
        self._sizes = [
            s.shape[0] if isinstance(s, tf.TensorSpec) and s.shape.rank else None for s in flatten(structure)
        ]
        self._grouped = len(set(self._sizes) - {None}) > 1

    def with_rows(self, rows: int) -> "Element":
        """Returns a copy whose decoded tensors have a known number of rows: `rows`, or each tensor's own."""
        element = copy.copy(self)
        element._rows = rows
        return element

    def in_groups(self) -> "Element":
        """Returns a copy for batches whose tensors differ in their numbers of rows."""
        element = copy.copy(self)
        element._grouped = True
        return element

    def takes(self, batch: Any) -> bool:
        """Returns whether a batch's tensors have equal numbers of rows, or may differ."""
        if self._grouped or len(self._leaves) < 2:
            return True
        pairs = zip(self._leaves, self._flatten(batch), strict=True)
        return len({value.shape[0] for leaf, value in pairs if leaf is not None}) < 2

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the arrays' specs, without the size of the batch."""
        specs = [spec for leaf in self._present() for spec in leaf.specs()]
        return [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs] if self._grouped else specs

    def specs_of_rows(self, rows: int | None) -> list[tf.TensorSpec]:
        """Returns the arrays' specs for batches of `rows` rows; for tensors that are not dense, the size stays unknown."""
        if self._grouped or rows is None:
            return self.specs()
        return [
            tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype) if isinstance(leaf, Dense) else spec
            for leaf in self._present()
            for spec in leaf.specs()
        ]

    def encode(self, batch: Any) -> list[np.ndarray]:
        """Returns a batch as arrays."""
        values = self._flatten(batch)
        pairs = zip(self._leaves, values, strict=True)
        arrays = [array for leaf, value in pairs if leaf is not None for array in leaf.encode(value)]
        if not self._grouped:
            return arrays
        groups = math.gcd(*map(len, arrays))
        return [array.reshape(groups, len(array) // max(1, groups), *array.shape[1:]) for array in arrays]

    def decode(self, arrays: Sequence[tf.Tensor]) -> Any:
        """Returns the batch, in its structure, for some rows of the arrays."""
        rest = [_ungrouped(array) for array in arrays] if self._grouped else list(arrays)
        values: list[Any] = []
        for leaf, size in zip(self._leaves, self._sizes, strict=True):
            count = 0 if leaf is None else len(leaf.specs())
            value = None if leaf is None else leaf.decode(rest[:count])
            if self._rows is not None and isinstance(leaf, Dense):
                value = tf.ensure_shape(value, [size if self._grouped else self._rows, *leaf.spec.shape[1:]])
            values.append(value)
            del rest[:count]
        return self._pack(self._structure, values)

    def key(self) -> Any:
        """Returns a key that is equal for elements whose batches can share a traced step."""
        leaves = repr(self._pack(self._structure, list(map(repr, self._leaves))))
        return leaves, self._rows, self._grouped

    def _present(self) -> Iterator[Leaf]:
        return (leaf for leaf in self._leaves if leaf is not None)


@dataclasses.dataclass(frozen=True)
class Dense(Leaf):
    """Numbers."""

    spec: tf.TensorSpec

    def specs(self) -> list[tf.TensorSpec]:
        return [self.spec]

    def encode(self, value: Any) -> list[np.ndarray]:
        return [np.ascontiguousarray(value)]

    def decode(self, arrays: Sequence[tf.Tensor]) -> Any:
        return arrays[0]


@dataclasses.dataclass(frozen=True)
class Text(Leaf):
    """Strings of any length: each byte plus one, padded with zeros."""

    shape: tf.TensorShape

    def specs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([*self.shape.as_list(), None], tf.uint16)]

    def encode(self, value: Any) -> list[np.ndarray]:
        strings = np.asarray(value)
        encoded = [s.encode() if isinstance(s, str) else bytes(s) for s in strings.reshape(-1)]
        longest = max(map(len, encoded), default=0)
        padded = np.zeros((len(encoded), longest), np.uint16)
        for row, text in zip(padded, encoded, strict=True):
            row[: len(text)] = np.frombuffer(text, np.uint8).astype(np.uint16) + 1
        return [padded.reshape(*strings.shape, longest)]

    def decode(self, arrays: Sequence[tf.Tensor]) -> Any:
        symbols = tf.constant([b"", *(bytes([code]) for code in range(256))])
        strings = tf.strings.reduce_join(tf.gather(symbols, tf.cast(arrays[0], tf.int32)), axis=-1)
        return tf.ensure_shape(strings, self.shape)


@dataclasses.dataclass(frozen=True)
class Ragged(Leaf):
    """Rows of different lengths: padded values, and the lengths."""

    values: Leaf
    spec: tf.RaggedTensorSpec

    def specs(self) -> list[tf.TensorSpec]:
        return [*self.values.specs(), tf.TensorSpec([None], self.spec.row_splits_dtype)]

    def encode(self, value: Any) -> list[np.ndarray]:
        return [*self.values.encode(value.to_tensor().numpy()), value.row_lengths().numpy()]

    def decode(self, arrays: Sequence[tf.Tensor]) -> Any:
        *padded, lengths = arrays
        values = self.values.decode(padded)
        return tf.RaggedTensor.from_tensor(values, lengths, row_splits_dtype=self.spec.row_splits_dtype)


@dataclasses.dataclass(frozen=True)
class Sparse(Leaf):
    """Sparse tensors: padded values and places of each row, their number, and the dense shape."""

    spec: tf.SparseTensorSpec

    def specs(self) -> list[tf.TensorSpec]:
        inner = self.spec.shape.rank - 1
        return [
            tf.TensorSpec([None, None], self.spec.dtype),
            tf.TensorSpec([None, None, inner], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, inner], tf.int64),
        ]

    def encode(self, value: Any) -> list[np.ndarray]:
        value = tf.sparse.reorder(value)
        rows, *inner_shape = value.dense_shape.numpy().tolist()
        indices, entries = value.indices.numpy(), value.values.numpy()
        counts = np.bincount(indices[:, 0], minlength=rows).astype(np.int64)
        here = np.arange(max(counts.max(initial=0), 1))[None, :] < counts[:, None]
        values = np.zeros(here.shape, entries.dtype)
        places = np.zeros((*here.shape, len(inner_shape)), np.int64)
        values[here], places[here] = entries, indices[:, 1:]
        return [values, places, counts, np.tile(np.array(inner_shape, np.int64), (rows, 1))]

    def decode(self, arrays: Sequence[tf.Tensor]) -> Any:
        values, places, counts, inner_shape = arrays
        here = tf.sequence_mask(counts, tf.shape(values)[1])
        rows = tf.where(here)[:, :1]
        dense_shape = tf.concat([tf.shape(counts, tf.int64), tf.reduce_max(inner_shape, axis=0)], 0)
        indices = tf.concat([rows, tf.boolean_mask(places, here)], 1)
        sparse = tf.SparseTensor(indices, tf.boolean_mask(values, here), dense_shape)
        sparse.set_shape(tf.TensorShape([None]).concatenate(self.spec.shape[1:]))
        return sparse


def _ungrouped(array: tf.Tensor) -> tf.Tensor:
    """Returns the rows of groups [groups, rows, ...]."""
    rows = tf.reshape(array, tf.concat([[-1], tf.shape(array)[2:]], 0))
    return tf.ensure_shape(rows, [None, *array.shape[2:]])


def _is_nothing(spec: Any) -> bool:
    return spec is None or bool(spec == _NOTHING)


def _leaf(spec: Any) -> Leaf:
    if isinstance(spec, tf.TensorSpec):
        return _tensor_leaf(spec.shape, spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank == 1:
        return Ragged(_tensor_leaf(spec.shape, spec.dtype), spec)
    if isinstance(spec, tf.SparseTensorSpec) and spec.dtype != tf.string and (spec.shape.rank or 0) > 1:
        return Sparse(spec)
    raise UnsupportedError(
        f"The training data hold {spec}, which cannot be divided over workers. Expected: tensors, ragged tensors with one "
        "ragged dimension, or sparse tensors of numbers, each with the batch as its first dimension. Convert it in the "
        "preparation of the data, for example with .to_tensor()."
    )


def _tensor_leaf(shape: tf.TensorShape, dtype: tf.DType) -> Leaf:
    if shape.rank is None or shape.rank == 0:
        raise UnsupportedError(
            f"The training data hold a tensor of shape {shape} ({dtype.name}). Expected: the batch as its first dimension. "
            "Batch the data set (dataset.batch(…)) and give its tensors a shape."
        )
    open_shape = tf.TensorShape([None]).concatenate(shape[1:])
    if dtype == tf.string:
        return Text(open_shape)
    if dtype in (tf.resource, tf.variant):
        raise UnsupportedError(
            f"The training data hold a tensor of type {dtype.name}, which cannot be sent to the pool. Expected: numbers, "
            "booleans or strings."
        )
    return Dense(tf.TensorSpec(open_shape, dtype))
