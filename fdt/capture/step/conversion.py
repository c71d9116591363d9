"""Converts what a tf.function takes and returns as TensorFlow does, where the function's Python is run instead of it."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.composite_tensor import CompositeTensor

# What Keras's layers attach to their outputs.
ATTACHED = ("_keras_logits", "_keras_mask")
# Operations before which Keras's crossentropies look for logits.
_MAKES_PROBABILITIES = ("Softmax", "Sigmoid")


def as_declared(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns arguments as a tf.function's signature, if it has one, converts them."""
    signature = function.input_signature
    if signature is None:
        return tuple(args), dict(kwargs)
    names = (name for name in inspect.signature(function.python_function).parameters if name != "self")
    specs = dict(zip(names, signature, strict=False))
    declared = (*map(_as_spec, args, signature), *args[len(signature) :])
    return declared, {name: _as_spec(value, specs.get(name)) for name, value in kwargs.items()}


def as_given(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns arguments as a tf.function's Python gets them: as its signature declares them, and arrays as tensors."""
    converted: tuple[tuple[Any, ...], dict[str, Any]] = tf.nest.map_structure(
        lambda value: tf.convert_to_tensor(value) if _is_array(value) else _without_origin(value),
        as_declared(function, args, kwargs),
    )
    return converted


def as_returned(result: Any) -> Any:
    """Returns what a tf.function's Python returned as its caller gets it: numbers, arrays and variables as tensors."""
    return tf.nest.map_structure(_as_output, result)


def _as_spec(value: Any, spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or isinstance(value, tf.Variable):
        return value
    return value if tf.is_tensor(value) and value.dtype == spec.dtype else tf.convert_to_tensor(value, spec.dtype)


def _is_array(value: Any) -> bool:
    """Whether TensorFlow takes a value for an array."""
    is_other = tf.is_tensor(value) or isinstance(value, tf.Variable | CompositeTensor | np.str_ | type)
    return hasattr(value, "__array__") and not is_other


def _without_origin(value: Any) -> Any:
    """Returns a tensor without what Keras finds at it or before it, which does not go in or out of a tf.function."""
    if not tf.is_tensor(value) or tf.executing_eagerly() or isinstance(value, tf.Variable | CompositeTensor):
        return value
    is_known = any(hasattr(value, name) for name in ATTACHED) or value.op.type in _MAKES_PROBABILITIES
    return tf.identity(value) if is_known else value


def _as_output(value: Any) -> Any:
    # TensorFlow's variables are composite tensors.
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    if value is None or tf.is_tensor(value) or isinstance(value, tf.TensorArray | tf.Operation | CompositeTensor):
        return _without_origin(value)
    return tf.convert_to_tensor(value)
