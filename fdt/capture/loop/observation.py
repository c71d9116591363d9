"""Finds out which of the script's functions train, while TensorFlow traces them."""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from fdt.base.patch import Patches
from fdt.capture.step.draws import States, states

# How the names of operations begin that write variables.
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
# Modules through which an assignment comes from whoever calls for it: ours, and those of Keras's variables.
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
    """Returns that of the function being traced in this context, None if there is none."""
    return _current.get()


class Observer:
    """The hooks, and the graphs that were found to train."""

    def __init__(self, refuse: Callable[[str], None], refuse_strategy: Callable[[str], None] = lambda _: None):
        """
        Args:
            refuse: Called with what a loop does that no tf.function is around.
            refuse_strategy: Called with what a step does that may run under a distribution strategy.
        """
        self._refuse, self._refuse_strategy = refuse, refuse_strategy
        # Each with where the generators of random numbers were before its trace.
        self._training: WeakKeyDictionary[Any, States | None] = WeakKeyDictionary()
        # Variables whose gradients were computed outside any function.
        self._eager: set[Any] = set()

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(func_graph, "func_graph_from_py_func", self._trace)
        patches.wrap(tf.GradientTape, "gradient", self._gradient)
        patches.wrap(gradients_util, "_GradientsHelper", self._differentiate)
        for name in ("assign", "assign_add", "assign_sub"):
            patches.wrap_inherited(ResourceVariable, name, self._assign)

    def trains(self, graph: Any) -> bool:
        """Returns whether a traced function trains; one that calls it does so too."""
        return graph in self._training

    def take_for_training(self, graph: Any) -> None:
        """Counts a traced function among those that train: it is a part of a step, the rest of which comes later."""
        self._training.setdefault(graph, None)

    def before_trace(self, graph: Any) -> States | None:
        """Returns where the generators of random numbers were when TensorFlow began to trace a function that trains."""
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
            # In the thread of a replica, which knows nothing of the function around it.
            self._refuse_strategy("GradientTape.gradient by variables")
        seen = _current.get()
        if seen is not None:
            seen.differentiates |= bool(variables)
        elif tf.executing_eagerly():
            # Keras's variables wrap TensorFlow's.
            self._eager |= {(v if isinstance(v, tf.Variable) else v.value).ref() for v in variables}
        return original(tape, target, sources, *args, **kwargs)

    def _differentiate(self, original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """`tf.gradients`, which also the gradients of functions are made by."""
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
    """Returns whether an assignment was called for inside TensorFlow or Keras: to restore weights, for example."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_NOT_CALLERS):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").split(".")[0] in ("tensorflow", "keras", "tf_keras")
