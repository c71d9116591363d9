"""Checks loops of the script's own: traces their steps, runs each once on this machine, and undoes its changes.

Variables that count steps still advance, because a loop may end by them.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.inspection import Inspection, SeenStep
from fdt.capture.keras.check import figure, step_lines
from fdt.capture.loop.arguments import AnyArguments
from fdt.capture.loop.calls import Steps
from fdt.capture.loop.run import loop_lines
from fdt.capture.loop.tracing import Call, flat_outputs, trace_step
from fdt.capture.refusals import in_place, where
from fdt.capture.step.divided import divided_variables
from fdt.capture.step.traced_step import TracedStep
from fdt.errors import FdtError
from fdt.program import admission


class LoopCheck(Steps):
    """Checks each step at its first call; all calls return made-up figures."""

    pretends = True

    def __init__(self, inspection: Inspection):
        """
        Args:
            inspection: Takes the steps.
        """
        self._inspection, self._config = inspection, inspection.config
        self._steps: dict[Any, tuple[TracedStep, AnyArguments]] = {}
        # Keeps alive the objects whose ids are in the keys of these steps.
        self._kept: list[Call] = []
        # The lines about each step, from its first call: a last batch may be smaller.
        self._lines: dict[Any, tuple[str, ...]] = {}
        # Each step's outputs when it was run, by its key and its arguments' shapes.
        self._outputs: dict[Any, list[tf.Tensor]] = {}
        # The variables in which each step counts.
        self._counters: dict[Any, list[_Counter]] = {}
        self._num_calls: collections.Counter[Any] = collections.Counter()

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Traces and checks a step at its first call; returns placeholder outputs."""
        call = Call(function, args, kwargs)
        key = (id(function), call.arguments.form.key())
        called = getattr(function.python_function, "__name__", "a step")
        what = getattr(function.python_function, "fdt_place", f"{called} of the script's own")
        try:
            if key not in self._steps:
                self._steps[key] = trace_step(call, self._config)
                self._kept.append(call)
                admission.admit(self._steps[key][0].program, self._config.admitted)
                if self._config.mode == "sync":
                    # Refuses what does not fit into memory.
                    divided_variables(self._config, self._steps[key][0])
        except FdtError as error:
            self._inspection.findings.refuse(where(), what, str(error))
            raise
        self._looked(key, what, call)
        return self._pretended(key, call, args, kwargs)

    def _pretended(self, key: Any, call: Call, args: Any, kwargs: Any) -> list[tf.Tensor]:
        """Returns placeholder outputs: the first step's, made smaller from call to call."""
        shapes = key, call.as_they_are.form.key()
        if shapes not in self._outputs:
            with _putting_back(self._steps[key][0].variables) as counters, in_place():
                self._outputs[shapes] = flat_outputs(call.function(*args, **kwargs))
            self._counters[shapes] = counters
        self._num_calls[key] += 1
        part = figure(self._num_calls[key])
        counters = self._counters[shapes]
        outputs = [
            output * tf.cast(part, output.dtype) if output.dtype.is_floating else _counted(output, counters)
            for output in self._outputs[shapes]
        ]
        for counter in counters:
            counter.variable.assign_add(counter.after - counter.before)
        return outputs

    def _looked(self, key: Any, what: str, call: Call) -> None:
        """Hands on a call of a step that could be distributed."""
        traced, form = self._steps[key]
        arguments = next(each for each in call.in_all_forms() if each.form.key() == form.form.key())

        def describe() -> tuple[str, ...]:
            if key not in self._lines:
                self._lines[key] = self._described(traced, call.arguments.num_rows, arguments)
            return self._lines[key]

        self._inspection.add(SeenStep(where(), what, traced, describe, arguments.encode, num_steps=1))

    def _described(self, traced: TracedStep, num_rows: int | None, arguments: AnyArguments) -> tuple[str, ...]:
        return (
            *loop_lines(self._config, traced, num_rows),
            f"data: {arguments.place()}",
            *step_lines(self._config, traced, [array.shape for array in arguments.encode()]),
            "stays here: the loop, and all functions that do not train",
        )

    def ran_out(self, function: Any) -> None:
        """Nothing to do: nothing was counted."""

    def drop(self, function: Any) -> None:
        """Nothing to do: all steps that were checked are kept."""


@dataclasses.dataclass(frozen=True)
class _Counter:
    """A variable that a step adds to, and its values before and after the step that was run."""

    variable: tf.Variable
    before: tf.Tensor
    after: tf.Tensor


def _counted(output: tf.Tensor, counters: Sequence[_Counter]) -> tf.Tensor:
    """Returns an output; if it is a counter's value, that value in the present step."""
    for counter in counters:
        if (
            output.dtype == counter.variable.dtype
            and not output.shape.rank
            and output in (counter.before, counter.after)
        ):
            return output + counter.variable - counter.before
    return output


@contextlib.contextmanager
def _putting_back(variables: Sequence[tf.Variable]) -> Iterator[list[_Counter]]:
    """Restores variables at the end; yields a list, to which it then adds the counters among them."""
    before = [tf.identity(variable) for variable in variables]
    counters: list[_Counter] = []
    try:
        yield counters
    finally:
        for variable, value in zip(variables, before, strict=True):
            after = tf.identity(variable)
            if variable.dtype.is_integer and not variable.shape.rank and after != value:
                counters.append(_Counter(variable, value, after))
            variable.assign(value)
