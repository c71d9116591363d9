"""Runs a tf.function that trains on the pool, each time the script's loop calls it."""

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from fdt.base.patch import Patches
from fdt.capture.loop.elements import Elements
from fdt.capture.loop.observation import Observer, observation
from fdt.capture.loop.outlined import Outlined
from fdt.capture.loop.pending import resolved
from fdt.capture.loop.side_effects import Outside
from fdt.capture.loop.tracing import flat_outputs
from fdt.capture.loop.unrolling import Unrolling, is_driving
from fdt.capture.refusals import Refusals, is_in_place, refuse_strategy
from fdt.capture.step import random_states, unseen
from fdt.capture.step.draws import as_before
from fdt.capture.variable_access import VariableAccess
from fdt.capture.watching import calling
from fdt.errors import UnsupportedError
from fdt.script.outline.sites import SITES


class Steps(Protocol):
    """Runs the script's steps."""

    # Whether outputs are placeholders.
    pretends: bool

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Runs a call of a tf.function that trains; returns its outputs, flat."""

    def ran_out(self, function: Any) -> None:
        """Called when a step found no more data."""

    def drop(self, function: Any) -> None:
        """Called when a tf.function will not be called any more."""


class Loops:
    """The hooks. TensorFlow traces the script's functions as usual; `Steps` runs those that train."""

    def __init__(
        self,
        make_steps: Callable[[VariableAccess], Steps],
        refusals: Refusals,
        touch: VariableAccess,
        elements: Elements | None,
    ):
        """
        Args:
            make_steps: Called when the script calls a step for the first time.
            refusals: Refuses training that cannot be captured.
            touch: Reports when the script reads variables.
            elements: Yields elements that the workers read; None if this machine reads all.
        """
        self._make_steps, self._refusals = make_steps, refusals
        self._steps: Steps | None = None
        self._touch, self._elements = touch, elements
        self._observer = Observer(self._refuse_eager, functools.partial(refuse_strategy, refusals))
        self._outside = Outside()
        self._unrolling = Unrolling()
        self._outlined = Outlined(self._observer, lambda: not (is_in_place() or is_driving()), self._drop)
        self._call: ContextVar[tuple[Any, tuple[Any, ...], dict[str, Any]] | None] = ContextVar(
            "fdt_call", default=None
        )

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        self._observer.install(patches)
        self._touch.install(patches)
        if self._elements is not None:
            self._elements.install(patches)
        self._outside.install(patches)
        self._unrolling.install(patches)
        random_states.install(patches)
        unseen.install(patches)
        patches.set(SITES, "runner", self._outlined)
        patches.wrap(Function, "__call__", self._called)
        patches.wrap(ConcreteFunction, "_call_flat", self._executed)

    def steps(self) -> Steps:
        """Returns the object that runs the steps, made at the first call."""
        if self._steps is None:
            self._steps = self._make_steps(self._touch)
        return self._steps

    def _drop(self, function: Any) -> None:
        computing = self._outside.drop(function)
        if self._steps is not None:
            for each in (function, computing):
                self._steps.drop(each)

    def _called(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        """Remembers a function that the script calls, and its arguments."""
        if not tf.executing_eagerly():
            with calling(function):
                return original(function, *args, **kwargs)
        random_states.called_beside(function)
        token = self._call.set((function, args, kwargs))
        try:
            return original(function, *args, **kwargs)
        finally:
            self._call.reset(token)

    def _executed(self, original: Callable[..., Any], concrete: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        """Replaces TensorFlow's execution of a traced function."""
        trains = self._observer.trains(concrete.graph)
        if not tf.executing_eagerly():
            seen = observation()
            if trains and seen is not None:
                seen.trains = True
        elif trains and not is_in_place():
            call = self._call.get()
            if call is not None and self._unrolling.loops(concrete, call[0]):
                return self._unrolled(concrete, *call)
            # What the step takes may stay pending; these are its iterators.
            return _structured(concrete, self._step(concrete, [*tensor_inputs, *captured_inputs]))
        else:
            self._touch.captured(captured_inputs)
        return original(concrete, [resolved(tensor) for tensor in tensor_inputs], captured_inputs)

    def _unrolled(self, concrete: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        token = self._call.set(None)
        try:
            outputs = flat_outputs(self._unrolling.run(function, args, kwargs))
        finally:
            self._call.reset(token)
        return _structured(concrete, outputs)

    def _refuse_eager(self, what: str) -> None:
        if not is_in_place():
            self._refusals.eager(f"{what} in a training loop of the script's own")

    def _step(self, concrete: Any, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        call = self._call.get()
        name = getattr(concrete, "name", "")
        if call is None:
            self._refusals.refuse(
                f"a training step called as a concrete function ({name})",
                "Call the tf.function itself, not what its get_concrete_function returned.",
            )
        if tf.distribute.has_strategy():
            raise UnsupportedError(
                f"The step runs under {type(tf.distribute.get_strategy()).__name__}. Two ways of distributing cannot be "
                "combined: call it without a strategy."
            )
        token = self._call.set(None)
        try:
            with as_before(self._observer.before_trace(concrete.graph)):
                return self._run(concrete, inputs, *call)
        finally:
            self._call.reset(token)

    def _run(
        self, concrete: Any, inputs: Sequence[tf.Tensor], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tf.Tensor]:
        steps, computing = self.steps(), self._outside.computing(concrete, function)
        if computing is None:
            return steps.run(function, args, kwargs)
        try:
            arguments = self._outside.arguments(concrete, inputs, args, kwargs)
        except tf.errors.OutOfRangeError:
            steps.ran_out(computing.function)
            raise
        return computing.outputs(steps.run(computing.function, arguments, {}), steps.pretends)


def _structured(concrete: Any, outputs: list[tf.Tensor]) -> Any:
    """Returns what the script's function returns; if there are ragged or sparse tensors, waits for all."""
    specs = tf.nest.flatten(concrete.structured_outputs)
    if any(isinstance(spec, tf.RaggedTensorSpec | tf.SparseTensorSpec) for spec in specs):
        outputs = [resolved(output) for output in outputs]
    return concrete.function_type.pack_output(outputs)
