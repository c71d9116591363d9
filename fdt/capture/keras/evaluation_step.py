"""Traces a model's test_step or predict_step for the workers, which may make it if it reads variables and adds to metrics, and
does no more.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.imported import hook_imported
from fdt.capture.keras.train_step import for_any_rows
from fdt.capture.keras.version import KerasVersion
from fdt.capture.step.draws import restore, states
from fdt.capture.step.observer import StepObserver
from fdt.capture.step.traced_step import TracedStep
from fdt.capture.step.tracing import StepTrace
from fdt.capture.step.writes import changed, reads
from fdt.capture.thread_output import held_back
from fdt.errors import FdtError, UnsupportedError
from fdt.program import admission
from fdt.program.element import Element
from fdt.v1 import program_pb2

# The method that makes a step of a function of a model.
_STEPS = {"test_function": "test_step", "predict_function": "predict_step"}


def trace_step_of(
    function: str, config: RunConfig, keras: KerasVersion, model: Any, element: Element, rows: int | None
) -> TracedStep:
    """Traces a step that trains nothing.

    Args:
        function: The model's function whose step it is: "test_function" or "predict_function".
        config: The run's configuration.
        keras: The model's generation of Keras.
        model: The model.
        element: What a batch looks like.
        rows: Rows of every batch; None if not known.

    Returns:
        The step; traced for `rows` only if it does not work for any number.

    Raises:
        UnsupportedError: It stays on this machine, and why. Python then has printed nothing and drawn no numbers.
    """

    seen = StepObserver(config, hook_imported, keras.metrics(model))

    def traced(element: Element) -> TracedStep:
        step = keras.converted(getattr(model, _STEPS[function]))
        predicts = function == "predict_function"
        return StepTrace(config, seen, trains=False, returns_rows=predicts).trace(step, element)

    with _undone_if_refused():
        try:
            step = for_any_rows(traced, element, rows)
            admission.admit(step.program, config.admitted)
        except UnsupportedError:
            raise
        except Exception as error:  # the script's own code runs here; Keras's own trace raises its errors
            raise UnsupportedError(f"its step cannot be traced for the workers ({error})") from error
        _check(step, seen, keras.counter_of(model, function))
        _check_returned(step, function)
    return step


def _check_returned(step: TracedStep, function: str) -> None:
    if function == "test_function" and not isinstance(step.placeholder(), dict):
        raise UnsupportedError("its step returns no dict")
    if function == "predict_function" and not all(isinstance(leaf, tf.Tensor) for leaf in step.outputs()):
        raise UnsupportedError("its step returns other things than tensors")


def _check(step: TracedStep, seen: StepObserver, counter: tf.Variable | None) -> None:
    """Refuses a step that does more than read variables and add to metrics.

    Args:
        step: The traced step.
        seen: The observer of its trace.
        counter: Counts steps outside of them, on this machine.
    """
    described = zip(step.variables, step.program.variables, strict=True)
    read = [variable for variable, each in described if each.role != program_pb2.ROLE_METRIC]
    if step.is_random:
        raise UnsupportedError("its step draws random numbers")
    if step.program.holes:
        raise UnsupportedError("its step computes gradients by variables")
    if step.prints or step.summaries:
        raise UnsupportedError("its step prints, or writes summaries")
    if any(variable is counter for variable in read):
        raise UnsupportedError("its step reads the count of its steps")
    for result, metric in seen.results(step.graph):
        # Results are computed on this machine, which does not have the newest weights.
        if reads(step.graph, result, read):
            raise UnsupportedError(f"the result of the metric {metric.name!r} is computed from other variables")
    for variable in changed(step.graph, read):
        raise UnsupportedError(f"its step changes {variable.name.removesuffix(':0')!r}, which is no metric's")


@contextlib.contextmanager
def _undone_if_refused() -> Iterator[None]:
    """Holds back what the trace prints; drops that, and takes back random numbers that it drew, if the step is refused.

    Keras then traces the step itself: the script's Python prints and draws once, as in plain python.
    """
    before = states()
    try:
        with held_back() as printed:
            yield
    except FdtError:
        restore(before)
        raise
    sys.stdout.write(printed.getvalue())
