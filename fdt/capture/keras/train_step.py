"""Traces a model's train_step: for any number of rows; where it works for the script's own number only, for that."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_logging_ops

from fdt.capture.keras.version import KerasVersion
from fdt.capture.patch import Patches
from fdt.capture.refusals import in_place
from fdt.capture.step.draws import States, as_before, replayed, states
from fdt.capture.step.traced_step import TracedStep
from fdt.capture.step.tracing import StepTrace
from fdt.capture.step.trial import NOT_COMPARED, adds_up
from fdt.capture.step.trial_holes import IndivisibleError
from fdt.element import Element
from fdt.errors import FdtError, UnsupportedError
from fdt.program import ALL_ROWS

# No script's own number: sizes that are written out in a step do not fit to it.
_ODD_ROWS = 7


def trace_train_step(
    keras: KerasVersion,
    model: Any,
    element: Element,
    scale_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None,
    divides: bool = False,
    rows: int | None = None,
    sums_metrics: bool = True,
) -> TracedStep:
    """Traces a model's train_step.

    Args:
        keras: The generation of Keras that the model is of.
        model: The model.
        element: What a batch looks like.
        scale_learning_rate: See `StepTrace`.
        divides: Whether several workers share a batch.
        rows: Of every batch, if that is known.
        sums_metrics: See `StepTrace`.

    Returns:
        The step; if it works for the script's number of rows only, one that is given all of a batch.
    """

    def step_trace(divides: bool = divides, sums_metrics: bool = sums_metrics) -> StepTrace:
        own = keras.has_own_step(model)
        return StepTrace(keras.metrics(model), scale_learning_rate, own, divides, sums_metrics=sums_metrics)

    def works(rows: int) -> bool:
        try:
            step_trace().try_out(keras.converted(model.train_step), element.with_rows(rows))
        except UnsupportedError:
            raise
        except Exception:  # the script's own code runs here
            return False
        return True

    before = states()
    try:
        traced = step_trace().trace(keras.converted(model.train_step), element)
    except IndivisibleError as error:
        with _once_more(before):
            traced = step_trace(divides=False, sums_metrics=False).trace(keras.converted(model.train_step), element)
        traced.program.rows, traced.undivided = ALL_ROWS, str(error)
        return traced
    except FdtError:
        raise
    except Exception:  # the script's own code runs here
        # It may ask for x.shape[0], which plain Keras knows where all batches are equal.
        with _once_more(before):
            if rows is None or not works(rows):
                raise
            traced = step_trace().trace(keras.converted(model.train_step), element.with_rows(rows))
        traced.program.rows = ALL_ROWS
        return traced
    if divides and element.has_one_size and keras.has_code_of_the_script(model):
        with _once_more(before):
            if not works(_ODD_ROWS) and (rows is None or works(rows)):
                traced.program.rows = ALL_ROWS
    return traced


def try_train_step(
    keras: KerasVersion, model: Any, traced: TracedStep, element: Element, batch: Sequence[np.ndarray]
) -> None:
    """Finds out, of a step that several workers share, what its graph does not tell: whether their gradients add up.

    If they do not, the step is to be given all of a batch.

    Args:
        keras: The generation of Keras that the model is of.
        model: The model.
        traced: Its train_step.
        element: What a batch looks like.
        batch: The arrays of one.
    """
    with in_place(), _once_more(states()):
        trace = StepTrace(keras.metrics(model), own_step=keras.has_own_step(model), divides=True)
        try:
            with _silent():
                trial = trace.trial_of(keras.converted(model.train_step), element)
        except FdtError:
            raise
        except Exception as error:  # the script's own code runs here
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            said = f"the step could not be tried ({why}): it is divided as its graph reads (fdt verify tells)"
            traced.unsure = (*traced.unsure, said)
            return
        try:
            traced.was_compared = adds_up(trial, batch)
            if not (traced.was_compared or traced.unsure) and len(batch[0]) > 1:
                traced.unsure = (NOT_COMPARED,)
        except IndivisibleError as error:
            traced.program.rows, traced.undivided = ALL_ROWS, str(error)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Within it, what is traced prints nothing when it runs: the step itself does."""
    patches = Patches()
    patches.wrap(gen_logging_ops, "print_v2", lambda original, *args, **kwargs: tf.no_op())
    try:
        yield
    finally:
        patches.undo()


@contextlib.contextmanager
def _once_more(before: States) -> Iterator[None]:
    """Within it the script's Python runs once more than it would: what it prints it has printed, what it draws it has drawn."""
    with as_before(before), replayed(), contextlib.redirect_stdout(io.StringIO()):
        yield
