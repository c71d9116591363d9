"""Whatever a batch is made of, it can be cut by rows: the parts, made whole again, are the parts of the batch."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.client.data import element_of
from fdt.errors import UnsupportedError

RANDOM = np.random.default_rng(0)
ROWS = 7
LENGTHS = np.array([0, 3, 1, 0, 5, 2, 2])
DENSE = tf.constant(RANDOM.random((ROWS, 3, 2)))
TEXT = tf.constant([[b"ring", b""], ["größe".encode(), b"\0\xff"], *[[b"a", b"bc"]] * 5])
RAGGED = tf.RaggedTensor.from_row_lengths(tf.constant(RANDOM.random((LENGTHS.sum(), 2))), LENGTHS)
RAGGED_TEXT = tf.RaggedTensor.from_row_lengths([b"x" * i for i in range(LENGTHS.sum())], tf.cast(LENGTHS, tf.int32))
SPARSE = tf.sparse.from_dense(np.where(RANDOM.random((ROWS, 4, 3)) > 0.7, RANDOM.random((ROWS, 4, 3)), 0))
EMPTY = tf.sparse.from_dense(np.zeros((ROWS, 4)))
VALUES = {
    "dense": DENSE,
    "text": TEXT,
    "ragged": RAGGED,
    "ragged text": RAGGED_TEXT,
    "sparse": SPARSE,
    "empty sparse": EMPTY,
    "nested": ({"b": DENSE, "a": RAGGED}, None, (TEXT,)),
}


def rows(value: Any, low: int, high: int) -> Any:
    def cut(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.slice(leaf, [low, *[0] * (leaf.shape.rank - 1)], [high - low, *leaf.shape[1:]])
        return leaf[low:high]

    return tf.nest.map_structure(cut, value)


def shown(value: Any) -> Any:
    def show(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            return (leaf.dense_shape.numpy().tolist(), leaf.indices.numpy().tolist(), leaf.values.numpy().tolist())
        if isinstance(leaf, tf.RaggedTensor):
            return (leaf.dtype, leaf.row_splits.dtype, leaf.to_list())
        return None if leaf is None else (leaf.dtype, leaf.numpy().tolist())

    return tf.nest.map_structure(show, value)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("part", [(0, ROWS), (0, 2), (2, 3), (3, ROWS)], ids=str)
def test_parts_are_parts(name: str, part: tuple[int, int]) -> None:
    value = VALUES[name]
    element = element_of(
        tf.nest.map_structure(lambda v: None if v is None else tf.type_spec_from_value(v), value), keras.tree
    )
    arrays = element.encode(value)
    assert [a.shape[0] for a in arrays] == [ROWS] * len(arrays)
    for array, spec in zip(arrays, element.specs(), strict=True):
        assert spec.is_compatible_with(tf.convert_to_tensor(array))
    low, high = part
    decoded = tf.function(lambda *parts: element.decode(parts), input_signature=element.specs())(
        *(array[low:high] for array in arrays)
    )
    assert shown(decoded) == shown(rows(value, low, high))


@pytest.mark.parametrize(
    "spec",
    [
        tf.TensorSpec([], tf.float32),
        tf.TensorSpec(None, tf.float32),
        tf.TensorSpec([None], tf.variant),
        tf.RaggedTensorSpec([None, None, None], tf.int32),
        tf.SparseTensorSpec([None, 3], tf.string),
    ],
    ids=repr,
)
def test_what_has_no_rows_is_refused(spec: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"first dimension|cannot be sent"):
        element_of((spec,), keras.tree)


def test_a_data_set_may_hold_nothing_in_a_place() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((DENSE, None)).batch(ROWS)
    element = element_of(dataset.element_spec, keras.tree)
    (batch,) = dataset
    first, second = element.decode([tf.constant(array) for array in element.encode(batch)])
    assert second is None
    np.testing.assert_array_equal(first, DENSE)


def test_tensors_of_different_numbers_of_rows_are_cut_into_groups() -> None:
    many, few = tf.constant(RANDOM.random((12, 2))), {"y": tf.constant([b"a", b"bc", b"d", b"e"])}
    specs = tf.nest.map_structure(tf.type_spec_from_value, (many, few))
    element = element_of(
        tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape[1:]], s.dtype), specs), keras.tree
    )
    assert not element.takes((many, few))
    grouped = element.in_groups()
    assert grouped.takes((many, few)) and grouped.key() != element.key()
    arrays = grouped.encode((many, few))
    assert [len(array) for array in arrays] == [4, 4]
    assert shown(grouped.decode([tf.constant(array[1:3]) for array in arrays])) == shown(
        (many[3:9], {"y": few["y"][1:3]})
    )
    # Where the specs tell, nothing has to be tried.
    assert element_of(specs, keras.tree).takes((many, few))
