"""Calls of a tf.function inside a step that is being traced: its Python is called, so that its holes are at the top level."""

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status
from tensorflow.python.autograph.core.converter import ConversionOptions
from tensorflow.python.autograph.impl.api import do_not_convert
from tensorflow.python.eager.polymorphic_function import autograph_util

from fdt.capture.step.seeds import none_taken
from fdt.program.holes import current_holes


def inlined(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a tf.function's Python again: one that was traced before has no holes, and a hole is found at the top level."""
    if current_holes() is None:
        return original(function, *args, **kwargs)
    with none_taken():
        return in_graph(function)(*args, **kwargs)


def in_graph(function: Any) -> Callable[..., Any]:
    """Returns the Python of a tf.function, converted by AutoGraph as the function itself would."""
    if not function._autograph:
        return do_not_convert(function.python_function)
    return with_autograph(function.python_function, function._experimental_autograph_options)


def with_autograph(function: Callable[..., Any], features: Any = None) -> Callable[..., Any]:
    """Returns a function converted by AutoGraph, as is what it calls; for use in a trace that is not."""
    converted = autograph_util.py_func_from_autograph(function, features)

    def call(*args: Any, **kwargs: Any) -> Any:
        # Our own trace is not converted, and would pass that on.
        options = ConversionOptions(recursive=True, optional_features=features, user_requested=True)
        with ControlStatusCtx(status=Status.ENABLED, options=options):
            return converted(*args, **kwargs)

    return call
