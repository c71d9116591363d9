"""Operations on constants that are computed while the step is divided: with attributes of every type, as TensorFlow gives."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from fdt.division import folding
from fdt.program.graphs import Operation

_OPERATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "a shape": lambda x: tf.ensure_shape(x, [1, 3]),
    "a shape that is known in part": lambda x: tf.ensure_shape(x, [None, 3]),
    "a type": lambda x: tf.cast(x, tf.int64),
    "a list of numbers": lambda x: tf.squeeze(x, [0]),
    "a flag": lambda x: tf.reduce_sum(x, 1, keepdims=True),
    "a text": lambda x: tf.raw_ops.MatrixDiagV3(
        diagonal=x, k=0, num_rows=-1, num_cols=-1, padding_value=0.0, align="LEFT_RIGHT"
    ),
    "a number": lambda x: tf.nn.leaky_relu(x, 0.25),
}


@pytest.mark.parametrize("attribute", _OPERATIONS)
def test_an_operation_with(attribute: str) -> None:
    value = np.array([[-1.0, 2.0, 3.0]], np.float32)
    with tf.Graph().as_default():
        result = _OPERATIONS[attribute](tf.constant(value))
    op = Operation(result.op)
    inputs = [tf.get_static_value(tensor) for tensor in result.op.inputs]
    assert folding.folds(op, inputs)
    (found,) = folding.fold(op, inputs)
    np.testing.assert_array_equal(found, _OPERATIONS[attribute](tf.constant(value)).numpy())
    assert found.dtype == result.dtype.as_numpy_dtype
