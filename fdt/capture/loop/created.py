"""Creates variables at once while a step of an eager loop is traced, as the script's own Python would do.

A tf.function initialises the variables that it creates only at the end of its trace. A trace that fails would leave
uninitialised variables in the script's model.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from fdt.capture.step.variables import created_outside

_ARGUMENTS = inspect.signature(tf.Variable.__init__).parameters


@contextlib.contextmanager
def created_at_once() -> Iterator[None]:
    """Makes traced code create its variables outside of the traced graph."""
    with tf.variable_creator_scope(_create):
        yield


def _create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    # A first value that the step computes is known only at the end of the trace; TensorFlow 1's options are left to TensorFlow.
    if not callable(kwargs["initial_value"]) or not _ARGUMENTS.keys() >= kwargs.keys():
        return next_creator(**kwargs)
    return created_outside(**kwargs)
