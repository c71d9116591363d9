"""Finds out which of the script's functions train, while TensorFlow traces them."""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from fdt.base.patch import Patches
from fdt.capture.step.draws import States, states

# Prefixes of the types of operations that write variables.
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
# Modules that are skipped in search of an assignment's caller: ours, and those of Keras's variables.
_NOT_CALLERS = ("fdt.", "keras.src.backend.common.variables", "keras.src.backend.tensorflow.core")


class Observation:
    """One trace.

    Attributes:
        trains: Whether gradients were seen on their way to an optimizer.
        differentiates: Whether gradients by variables are computed: a function that also writes variables trains.
    """

    def __init__(self) -> None:
        self.trains = self.differentiates = False


_current: ContextVar[Observation | None] = ContextVar("fdt_observation", default=None)


def observation() -> Observation | None:
    """Returns the observation of the function being traced in this context, None if there is none."""
    return _current.get()


class Observer:
    """The hooks, and the graphs that were found to train."""

    def __init__(self, refuse: Callable[[str], None], refuse_strategy: Callable[[str], None] = lambda _: None):
        """
        Args:
            refuse: Called with a description of training outside any tf.function.
            refuse_strategy: Called with a description of training that may run under a distribution strategy.
        """
        self._refuse, self._refuse_strategy = refuse, refuse_strategy
        # Each with the states of the random number generators before its trace.
        self._training: WeakKeyDictionary[Any, States | None] = WeakKeyDictionary()
        # Variables whose gradients were computed outside any function.
        self._eager: set[Any] = set()

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(func_graph, "func_graph_from_py_func", self._trace)
        patches.wrap(tf.GradientTape, "gradient", self._gradient)
        patches.wrap(gradients_util, "_GradientsHelper", self._differentiate)
        for name in ("assign", "assign_add", "assign_sub"):
            patches.wrap_all(BaseResourceVariable, name, self._assign)

    def trains(self, graph: Any) -> bool:
        """Returns whether a traced function trains, itself or in a function that it calls."""
        return graph in self._training

    def take_for_training(self, graph: Any) -> None:
        """Marks a traced function as one that trains: it is part of a step that later functions complete."""
        self._training.setdefault(graph, None)

    def before_trace(self, graph: Any) -> States | None:
        """Returns the states of the random number generators before TensorFlow traced a function that trains."""
        return self._training.get(graph)

    def _trace(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outer, inner = _current.get(), Observation()
        before = states() if outer is None else None
        token = _current.set(inner)
        try:
            graph = original(*args, **kwargs)
        finally:
            _current.reset(token)
        if inner.trains or (inner.differentiates and writes(graph)):
            self._training[graph] = before
            if outer is not None:
                outer.trains = True
        elif outer is not None:
            outer.differentiates |= inner.differentiates
        return graph

    def _gradient(
        self, original: Callable[..., Any], tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        variables = [source for source in tf.nest.flatten(sources) if hasattr(source, "assign")]
        if variables:
            # This may be a replica's thread, whose context does not have the enclosing function's observation.
            self._refuse_strategy("GradientTape.gradient by variables")
        seen = _current.get()
        if seen is not None:
            seen.differentiates |= bool(variables)
        elif tf.executing_eagerly():
            # Keras's variables wrap TensorFlow's.
            self._eager |= {(v if isinstance(v, tf.Variable) else v.value).ref() for v in variables}
        return original(tape, target, sources, *args, **kwargs)

    def _differentiate(self, original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """Hooks `tf.gradients`, which TensorFlow uses for the gradients of functions too."""
        seen = _current.get()
        if seen is not None:
            seen.differentiates |= any(hasattr(source, "assign") for source in tf.nest.flatten(xs))
        return original(ys, xs, *args, **kwargs)

    def _assign(self, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> Any:
        if self._eager and tf.executing_eagerly() and variable.ref() in self._eager and not _by_a_library():
            self._refuse(
                f"a variable ({variable.name.removesuffix(':0')}) changed by its gradients outside a tf.function,"
            )
        return original(variable, *args, **kwargs)


def writes(graph: Any) -> bool:
    """Returns whether a function writes variables, be it in a branch, a loop or a function that it calls."""
    if any(operation.type.startswith(_WRITES) for operation in graph.get_operations()):
        return True
    library = graph.as_graph_def().library
    return any(node.op.startswith(_WRITES) for function in library.function for node in function.node_def)


def _by_a_library() -> bool:
    """Returns whether TensorFlow or Keras itself called an assignment, to restore weights for example."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_NOT_CALLERS):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").split(".")[0] in ("tensorflow", "keras", "tf_keras")
