"""Traces a step of the script's own: a tf.function with a GradientTape."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.imported import hook_imported
from fdt.capture.loop.arguments import AnyArguments, Arguments, ElementForm, Form, OfElement
from fdt.capture.step import random_states, sizes
from fdt.capture.step.draws import replayed
from fdt.capture.step.inlining import in_graph
from fdt.capture.step.observer import StepObserver
from fdt.capture.step.traced_step import Known, TracedStep, refuse_moved
from fdt.capture.step.tracing import StepTrace
from fdt.capture.step.writes import Writes, counting_draws
from fdt.capture.thread_output import held_back
from fdt.errors import FdtError, UnsupportedError
from fdt.v1 import program_pb2


class LoopTrace(StepTrace):
    """One trace of a step of the script's own; see `StepTrace`."""

    def __init__(self, config: RunConfig):
        super().__init__(config, StepObserver(config, hook_imported))

    def step(self, function: Any, form: Form | ElementForm) -> TracedStep:
        """Traces a function for arguments of a form."""

        def call(arguments: Any) -> list[Any]:
            args, kwargs = arguments
            return [_known(output) for output in flat_outputs(in_graph(function)(*args, **kwargs))]

        with replayed():
            traced = self.trace(call, form)  # type: ignore[arg-type]
        traced.program.one_row = form.is_one_row
        return traced

    def _check_outputs(self, outputs: Sequence[tf.Tensor]) -> None:
        """Accepts outputs of any size: the script gets them step by step."""

    def _role(self, variable: tf.Variable, writes: Writes) -> "program_pb2.Role":
        if id(variable) in self._seen.added and writes.follow_inputs and not writes.follow_holes:
            return program_pb2.ROLE_METRIC
        return super()._role(variable, writes)


class Call:
    """One call of a step.

    Attributes:
        function: The tf.function.
        arguments: Its arguments, for any number of rows.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        """Reads the arguments of the call."""
        self.function = function
        self.arguments = Arguments.of(function, args, kwargs)
        element = self.arguments.element
        self._of_element = [] if element is None else [OfElement(self.arguments, element)]
        self._given = args, kwargs

    @property
    def sizes(self) -> str:
        """The shapes of its arguments; plain python has a function for each."""
        return repr([leaf.shape for leaf in tf.nest.flatten(self._given) if hasattr(leaf, "shape")])

    @property
    def of_any_size(self) -> list[AnyArguments]:
        """Its arguments in the forms for any number of rows, the best one first."""
        return [*self._of_element, self.arguments]

    def in_all_forms(self) -> Iterator[AnyArguments]:
        """Yields its arguments in each form that a step may take."""
        yield from self.of_any_size
        yield self.as_they_are

    @functools.cached_property
    def as_they_are(self) -> Arguments:
        """Its arguments, for these shapes alone: the step may read its number of rows while it is traced."""
        args, kwargs = self._given
        return Arguments.of(self.function, args, kwargs, as_they_are=True)


def trace_step(call: Call, config: RunConfig) -> tuple[TracedStep, AnyArguments]:
    """Traces a step of the script's own.

    Returns:
        The step, and the arguments in the form that it takes.
    """

    function = call.function
    has_one_form = function.input_signature is not None or bool(function._reduce_retracing)
    has_one_form = has_one_form or hasattr(function.python_function, "fdt_any_size")
    # TensorFlow's own trace has already printed what the step's Python prints.
    with held_back(), random_states.of_sizes(call.sizes):
        step, arguments = _traced(call, config, has_one_form)
    step.program.computation.compiled = step.program.computation.compiled_on_gpus = bool(function._jit_compile)
    step.is_any_size = has_one_form
    counts = not random_states.count_for_all_sizes(step.random_states) or bool(counting_draws(step.graph))
    step.draws_by_size = counts and not has_one_form
    if config.pulls_parameters:
        refuse_moved(step)
    if config.mode == "async" and not any(step.writes(variable) for variable in step.trained()):
        raise UnsupportedError(
            "The step computes gradients and keeps them for another step, which is to apply them. Asynchronous training "
            "needs both in one step: leave it to the optimizer (its gradient_accumulation_steps), or run this script with "
            "--mode sync."
        )
    return step, arguments


def _traced(call: Call, config: RunConfig, has_one_form: bool) -> tuple[TracedStep, AnyArguments]:
    with contextlib.nullcontext() if has_one_form else sizes.unread():
        for arguments in call.of_any_size:
            try:
                return LoopTrace(config).step(call.function, arguments.form), arguments
            except FdtError:
                raise
            except Exception:  # the script's own code runs here
                continue
    step = LoopTrace(config).step(call.function, call.as_they_are.form)
    step.program.one_size = True
    return step, call.as_they_are


def _known(output: tf.Tensor) -> Any:
    """Returns a Known for an output that is the same in every step."""
    value = tf.get_static_value(output)
    return output if value is None else Known(value)


def flat_outputs(result: Any) -> list[Any]:
    """Returns what a step returned as TensorFlow gives it back: a flat list of tensors."""
    leaves = tf.nest.flatten(result, expand_composites=True)
    return [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None and not isinstance(leaf, tf.Operation)]
