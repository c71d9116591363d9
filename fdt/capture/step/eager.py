"""Tells which part of a trace plain Python runs eagerly, where Keras computes crossentropies otherwise than in a graph.

In a graph Keras looks for the softmax or sigmoid that made the probabilities, and computes with what that was given. An eager
tensor tells nothing of its origin: there Keras takes the logarithms of the probabilities, which it keeps above 1e-7.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

# The graph of the trace, as long as it runs code of an eager step.
_graph: ContextVar[Any] = ContextVar("fdt_eager_graph", default=None)


@contextlib.contextmanager
def eager(is_eager: bool = True) -> Iterator[None]:
    """Marks code of a trace that plain Python runs eagerly, or code in a tf.function that this calls."""
    token = _graph.set(tf.compat.v1.get_default_graph() if is_eager else None)
    try:
        yield
    finally:
        _graph.reset(token)


def eagerly(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step that plain Python runs eagerly."""

    def run(*args: Any) -> Any:
        with eager():
            return step(*args)

    return run


def probabilities(original: Callable[..., Any], output: Any, from_logits: bool, *args: Any, **kwargs: Any) -> Any:
    """Returns what Keras computes a crossentropy of, and whether that is logits; hooks Keras's function of the same result.

    Args:
        original: The function.
        output: A model's output.
        from_logits: Whether the script says that it is logits.
        args: Further arguments of the function.
        kwargs: The same.
    """
    is_eager = _graph.get() is not None and tf.is_tensor(output) and getattr(output, "graph", None) is _graph.get()
    # Keras's own activations keep what they were given, eagerly too.
    if is_eager and not hasattr(output, "_keras_logits"):
        return output, from_logits
    return original(output, from_logits, *args, **kwargs)
