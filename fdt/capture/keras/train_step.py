"""Traces a model's train_step for any number of rows, or, where that fails, for the script's own number."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.imported import hook_imported
from fdt.capture.keras.version import KerasVersion
from fdt.capture.step import sizes
from fdt.capture.step.draws import States, as_before, replayed, states
from fdt.capture.step.eager import eagerly
from fdt.capture.step.observer import StepObserver
from fdt.capture.step.traced_step import TracedStep
from fdt.capture.step.tracing import StepTrace
from fdt.capture.thread_output import held_back
from fdt.errors import FdtError
from fdt.program.element import Element


def trace_train_step(
    config: RunConfig,
    keras: KerasVersion,
    model: Any,
    element: Element,
    scale_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None,
    rows: int | None = None,
) -> TracedStep:
    """Traces a model's train_step.

    Args:
        config: The run's configuration.
        keras: The model's generation of Keras.
        model: The model.
        element: What a batch looks like.
        scale_learning_rate: See `StepObserver`.
        rows: Rows of every batch; None if not known.

    Returns:
        The step; traced for `rows` only if it does not work for any number.
    """

    def traced(element: Element) -> TracedStep:
        own = keras.has_own_step(model)
        seen = StepObserver(config, hook_imported, keras.metrics(model), scale_learning_rate, own)
        once = keras.is_traced_once(model)
        step = keras.converted(model.train_step)
        return StepTrace(config, seen, once=once).trace(eagerly(step) if model.run_eagerly else step, element)

    return for_any_rows(traced, element, rows)


def for_any_rows(trace: Callable[[Element], TracedStep], element: Element, rows: int | None) -> TracedStep:
    """Traces a step for any number of rows, or, where that fails, for `rows`.

    Args:
        trace: Traces the step for batches of a form; runs the script's own code.
        element: What a batch looks like.
        rows: Rows of every batch; None if not known.
    """
    before = states()
    # Where plain Keras knows the rows, the step may read x.shape[0].
    with contextlib.nullcontext() if rows is None else sizes.unread():
        try:
            return trace(element)
        except FdtError:
            raise
        except Exception:  # the script's own code runs here
            if rows is None:
                raise
    with _once_more(before):
        step = trace(element.with_rows(rows))
    step.program.one_size = True
    return step


@contextlib.contextmanager
def _once_more(before: States) -> Iterator[None]:
    """Hides that the script's Python runs a second time: drops what it prints again, and repeats the random numbers it drew."""
    with as_before(before), replayed(), held_back():
        yield
