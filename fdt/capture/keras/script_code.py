"""Says whether the trace of a model's step runs Python of the script's, which does what it does each time it is traced."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

# Whose code does nothing in a trace but to make operations and variables.
_KNOWN = frozenset(
    {"keras", "tensorflow", "numpy", "ml_dtypes", "builtins", "collections", "inspect", "threading", "_thread", "fdt"}
)
# Lists in lists of what a layer was made with.
_MAX_DEPTH = 4


def runs_script_code(objects: Iterable[Any]) -> bool:
    """Whether one of these objects, or a function or object that it holds, is not of Keras's or TensorFlow's own classes.

    Args:
        objects: Layers, losses, metrics, optimizers.
    """
    return any(_is_strange(each, 0) or any(_is_strange(value, 0) for value in vars(each).values()) for each in objects)


def _is_strange(value: Any, depth: int) -> bool:
    if value is None or isinstance(value, str | bytes | int | float | complex | tf.Tensor | tf.Variable | type):
        return False
    if isinstance(value, functools.partial) or depth > _MAX_DEPTH:
        return True
    if isinstance(value, Mapping):
        return any(_is_strange(each, depth + 1) for each in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_is_strange(each, depth + 1) for each in value)
    # A function's own module; an object's is its class's.
    module = getattr(value, "__module__", None) or type(value).__module__
    if str(module).partition(".")[0] not in _KNOWN:
        return True
    # Keras's losses and metrics may be made of a function.
    is_made_of = isinstance(value, keras.losses.Loss | keras.metrics.Metric)
    return is_made_of and any(_is_strange(each, depth + 1) for each in vars(value).values())
