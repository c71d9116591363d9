"""Loops of the script's own, looked at: their steps are traced and return zeros."""

from typing import Any

import tensorflow as tf

from fdt.capture.keras.check import step_lines
from fdt.capture.loop.arguments import Arguments
from fdt.capture.loop.run import loop_lines
from fdt.capture.loop.tracing import Call, trace_step
from fdt.capture.refusals import where
from fdt.capture.step.traced_step import Known, TracedStep
from fdt.config import RunConfig
from fdt.errors import FdtError
from fdt.findings import Finding, Findings
from fdt.pool import admission


class LoopCheck:
    """See `fdt.capture.loop.calls.Steps`."""

    pretends = True

    def __init__(self, config: RunConfig, findings: Findings):
        self._config, self._findings = config, findings
        self._steps: dict[Any, tuple[TracedStep, Arguments]] = {}
        # What the keys of these steps name by identity has to stay alive.
        self._kept: list[Call] = []
        # What was said of each when it came first: a last batch may be smaller.
        self._lines: dict[Any, tuple[str, ...]] = {}

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Looks at a step when it is called for the first time."""
        call = Call(function, args, kwargs)
        key = (id(function), call.arguments.form.key())
        called = getattr(function.python_function, "__name__", "a step")
        what = getattr(function.python_function, "fdt_place", f"{called} of the script's own")
        try:
            if key not in self._steps:
                self._steps[key] = trace_step(call, self._config)
                self._kept.append(call)
                admission.admit(self._steps[key][0].program)
        except FdtError as error:
            self._findings.refuse(where(), what, str(error))
            raise
        self._looked(key, what, call)
        return [_nothing(output, call.arguments.num_rows) for output in self._steps[key][0].outputs()]

    def _looked(self, key: Any, what: str, call: Call) -> None:
        """Records a call of a step that could be distributed."""
        traced, form = self._steps[key]
        if key not in self._lines:
            arguments = call.arguments if form.form.key() == call.arguments.form.key() else call.as_they_are
            shapes = [array.shape for array in arguments.encode()]
            lines = loop_lines(self._config, traced, call.arguments.num_rows)
            lines.append("data: streamed, step by step, as the script makes them")
            lines += step_lines(self._config, traced, shapes)
            self._lines[key] = (*lines, "stays here: the loop, and all functions that do not train")
        self._findings.add(Finding(where(), what, self._lines[key]))

    def ran_out(self, function: Any) -> None:
        """Nothing to do: nothing was counted."""


def _nothing(output: Any, num_rows: int | None) -> tf.Tensor:
    if isinstance(output, Known):
        return tf.constant(output.value)
    if not tf.is_tensor(output):
        return tf.convert_to_tensor(output.metric.result())
    rank = output.shape.rank
    shape = [] if rank is None else [(num_rows or 1) if d is None else d for d in output.shape.as_list()]
    return tf.zeros(shape, output.dtype) if output.dtype != tf.string else tf.fill(shape, "")
