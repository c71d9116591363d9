"""Reads and sets variables by one operation each: the methods of `tf.Variable` take several times as long."""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


def read(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value; TensorFlow copies the memory once the variable changes."""
    if type(variable) is not ResourceVariable:
        # Such as one that has a value on each device.
        return variable.read_value()
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def write(variable: tf.Variable, value: np.ndarray | tf.Tensor | tf.Variable) -> None:
    """Sets a variable.

    Args:
        variable: The variable.
        value: An array, tensor or variable of the same shape.
    """
    if type(variable) is not ResourceVariable or not variable.shape.is_compatible_with(value.shape):
        variable.assign(value, read_value=False)
        return
    tensor: Any = value if tf.is_tensor(value) else tf.constant(value, variable.dtype)
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tensor)
