"""Creates variables at once while a step of an eager loop is traced, as the script's own Python would do.

A function of TensorFlow's gives the variables that it creates their first values when its trace has come to an end. A trace
that fails would leave them in the script's model without any.
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
    """Within it, what creates variables does so outside of the graph that is being traced."""
    with tf.variable_creator_scope(_create):
        yield


def _create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    # A first value that the step has computed is known at the end of the trace only; options of TensorFlow 1's are left to it.
    if not callable(kwargs["initial_value"]) or not _ARGUMENTS.keys() >= kwargs.keys():
        return next_creator(**kwargs)
    return created_outside(**kwargs)
