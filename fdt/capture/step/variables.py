"""Finds the variables of TensorFlow behind those of Keras."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variables


def tf_variable(variable: Any) -> tf.Variable | None:
    """Returns the TensorFlow variable that a Keras 3 or casting variable wraps, or itself; None if it is no variable."""
    if not isinstance(variable, tf.Variable):
        variable = getattr(variable, "value", None)
    inner = getattr(variable, "_variable", None)
    if isinstance(inner, tf.Variable):
        return inner
    return variable if isinstance(variable, tf.Variable) else None


def tf_variables(variables: Iterable[Any]) -> list[tf.Variable]:
    """Returns TensorFlow's variables; see `tf_variable`."""
    return [tf_variable(variable) for variable in variables]


def as_tensor(leaf: Any) -> Any:
    """Returns a variable's value; returns any other object unchanged."""
    variable = None if tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable) else tf_variable(leaf)
    return leaf if variable is None else tf.convert_to_tensor(variable)


def created_outside(**arguments: Any) -> tf.Variable:
    """Creates a variable outside of the functions that are being traced, which would capture it otherwise.

    Args:
        arguments: Arguments of tf.Variable.
    """
    with tf.init_scope():
        return variables.default_variable_creator_v2(None, **arguments)
