"""Switches TensorFlow 2's behaviour on for code of ours, whatever the script has switched off."""

from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow.python import tf2
from tensorflow.python.eager import context
from tensorflow.python.framework import tensor_shape


@contextmanager
def as_tensorflow_2() -> Iterator[None]:
    """Within it, TensorFlow executes eagerly and has shapes of numbers, as everything of ours expects."""
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
