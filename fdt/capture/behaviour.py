"""Switches TensorFlow 2's behaviour on for our code, if the script has switched it off."""

from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow.python import tf2
from tensorflow.python.eager import context
from tensorflow.python.framework import tensor_shape


@contextmanager
def as_tensorflow_2() -> Iterator[None]:
    """Makes TensorFlow execute eagerly and use shapes of numbers, as our code expects."""
    enabled, shapes = tf2.enabled(), tensor_shape._TENSORSHAPE_V2_OVERRIDE
    tf2.enable()
    tensor_shape._TENSORSHAPE_V2_OVERRIDE = True
    try:
        with context.eager_mode():
            yield
    finally:
        tensor_shape._TENSORSHAPE_V2_OVERRIDE = shapes
        if not enabled:
            tf2.disable()
