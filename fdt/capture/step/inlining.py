"""Inlines tf.functions that a step under trace calls: runs their Python, so that their holes are at the top level."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status
from tensorflow.python.autograph.core.converter import ConversionOptions
from tensorflow.python.autograph.impl.api import do_not_convert
from tensorflow.python.eager.polymorphic_function import autograph_util

from fdt.capture.step.conversion import as_given, as_returned
from fdt.capture.step.eager import eager
from fdt.capture.step.seeds import inlining
from fdt.program.holes import current_holes


def inlined(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a tf.function's Python in a step's trace: an earlier trace has no holes, and only top-level holes are found."""
    if current_holes() is None:
        return original(function, *args, **kwargs)
    with inlining(function, _signature(args, kwargs)), eager(False):
        return as_returned(in_graph(function)(*args, **kwargs))


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns what tells apart calls for which TensorFlow traces a function anew."""
    return repr([_spec(leaf) for leaf in tf.nest.flatten((args, kwargs))])


def _spec(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray | np.generic) or (tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable)):
        # TensorFlow makes tensors of arrays.
        return tf.as_dtype(leaf.dtype), leaf.shape
    return leaf if isinstance(leaf, str | bytes | bool | int | float | type(None)) else id(leaf)


def in_graph(function: Any) -> Callable[..., Any]:
    """Returns the Python of a tf.function, converted by AutoGraph as the function itself would; it gets the same arguments."""
    if function._autograph:
        python = with_autograph(function.python_function, function._experimental_autograph_options)
    else:
        python = do_not_convert(function.python_function)

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = as_given(function, args, kwargs)
        return python(*args, **kwargs)

    return call


def with_autograph(function: Callable[..., Any], features: Any = None) -> Callable[..., Any]:
    """Returns a function converted by AutoGraph, together with all that it calls, for use in a trace that is not converted."""
    converted = autograph_util.py_func_from_autograph(function, features)

    def call(*args: Any, **kwargs: Any) -> Any:
        # Our own trace is not converted, and what it calls would not be either.
        options = ConversionOptions(recursive=True, optional_features=features, user_requested=True)
        with ControlStatusCtx(status=Status.ENABLED, options=options):
            return converted(*args, **kwargs)

    return call
