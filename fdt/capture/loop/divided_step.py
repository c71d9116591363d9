"""How a step of the script's own is divided over workers; where that cannot be, one of them computes it."""

import contextlib
import functools
import io
from collections.abc import Iterator
from typing import Any

from fdt.capture.loop.arguments import Arguments, Travel
from fdt.capture.loop.division import Division, divide
from fdt.capture.loop.tracing import LoopTrace
from fdt.capture.refusals import in_place
from fdt.capture.step.traced_step import TracedStep, refuse_moved
from fdt.capture.step.trial import NOT_COMPARED
from fdt.capture.step.trial_holes import IndivisibleError
from fdt.config import RunConfig
from fdt.errors import FdtError, UnsupportedError
from fdt.program import ALL_ROWS


class Call:
    """One call of a step, in the forms in which its arguments may travel.

    Attributes:
        function: The tf.function.
        num_workers: Of the run.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], config: RunConfig):
        """Takes the call."""
        self.function = function
        self.num_workers = config.num_workers
        self._args, self._kwargs, self._config = args, kwargs, config

    @functools.cached_property
    def open(self) -> Arguments:
        """For any number of rows."""
        return Arguments(self.function, self._args, self._kwargs)

    @functools.cached_property
    def fixed(self) -> Arguments:
        """For the rows of one worker."""
        rows = rows_each(self.open.num_rows, self._config)
        return Arguments(self.function, self._args, self._kwargs, rows)

    @functools.cached_property
    def whole(self) -> Arguments:
        """Undivided."""
        return Arguments(self.function, self._args, self._kwargs, travel=Travel.WHOLE)

    @functools.cached_property
    def as_it_is(self) -> Arguments:
        """Undivided, for these shapes alone."""
        return Arguments(self.function, self._args, self._kwargs, travel=Travel.WHOLE_AS_THEY_ARE)

    def forms(self) -> Iterator[Arguments]:
        """Yields them, those that are preferred first."""
        yield self.open
        yield self.fixed
        yield self.whole
        yield self.as_it_is


class DividedStep:
    """A traced step.

    Attributes:
        traced: It.
        arguments: In the form that it takes.
        undivided: Why one worker has to compute all of a batch that several could; None if that is not so.
    """

    def __init__(self, traced: TracedStep, arguments: Arguments, undivided: str | None):
        self.traced, self.arguments, self.undivided = traced, arguments, undivided


def rows_each(num_rows: int | None, config: RunConfig) -> int:
    """Returns how many rows a worker gets of a batch, if each that gets some has to get as many."""
    rows = num_rows or 1
    if config.mode == "async":
        return rows
    return rows // max(n for n in range(1, config.num_workers + 1) if rows % n == 0)


def trace_step(call: Call, config: RunConfig) -> DividedStep:
    """Traces a step for any number of rows; where its code needs to know the number, for the one that a worker gets.

    Args:
        call: The script's first one.
        config: The run's configuration.

    Raises:
        UnsupportedError: The step cannot be captured.
    """
    # The script's function is traced once more than it would be; what it prints meanwhile it has printed already.
    with contextlib.redirect_stdout(io.StringIO()):
        step = _divided(call, config)
    if config.mode == "async" and not any(step.traced.writes(v) for v in step.traced.trained()):
        raise UnsupportedError(
            "The step computes gradients and keeps them for another step, which is to apply them. Asynchronous training "
            "needs both in one step: leave it to the optimizer (its gradient_accumulation_steps), or run this script with "
            "--mode sync."
        )
    if config.mode == "async":
        refuse_moved(step.traced)
    return step


def _divided(call: Call, config: RunConfig) -> DividedStep:
    several = config.mode == "sync" and config.num_workers > 1
    if call.open.too_large:
        reason = "it is given large tensors that have not one row for each row of the batch"
        return _undivided(call, reason if several else None)
    try:
        return _tried(call, call.open) if several else _traced(call, call.open)
    except IndivisibleError as error:
        return _undivided(call, str(error))
    except FdtError:
        raise
    except Exception:  # the script's own code runs here
        if not several:
            return _traced(call, call.fixed)
    if call.fixed.form.rows == call.fixed.num_rows:
        rows = call.fixed.num_rows
        return _undivided(call, f"it works for a fixed number of rows only, and {rows} cannot be divided equally")
    try:
        return _tried(call, call.fixed)
    except IndivisibleError as error:
        return _undivided(call, str(error))


def _undivided(call: Call, reason: str | None) -> DividedStep:
    try:
        step = _traced(call, call.whole, reason)
    except FdtError:
        raise
    except Exception:  # the script's own code runs here
        step = _traced(call, call.as_it_is, reason)
    step.traced.program.rows = ALL_ROWS
    return step


def _traced(call: Call, arguments: Arguments, reason: str | None = None) -> DividedStep:
    trace = LoopTrace(sums_metrics=call.num_workers > 1 and reason is None)
    return DividedStep(trace.step(call.function, arguments.form), arguments, reason)


def _tried(call: Call, arguments: Arguments) -> DividedStep:
    """Traces a step, and finds out how it is divided."""
    function, form = call.function, arguments.form

    def trace(division: Division | None = None) -> LoopTrace:
        return LoopTrace(divides=True, division=division)

    def attempt(frozen: bool) -> tuple[Division, bool]:
        of_rows = trace()
        trial = of_rows.trial(function, form, frozen)
        twice = trial if form.rows is None else trace().trial(function, form.with_rows(2 * form.rows), frozen)
        return divide(trial, twice, arguments), of_rows.normalises_batches

    with in_place():
        division, normalises = attempt(frozen=True)
        if normalises and not division.tells:
            # Without normalisation the numbers of a deep net may grow beyond all bounds.
            division, _ = attempt(frozen=False)
    traced = trace(division).step(function, form)
    traced.program.rows = form.rows or 0
    traced.was_compared = division.was_compared
    if not (traced.was_compared or traced.unsure) and (arguments.num_rows or 1) > 1:
        traced.unsure = (NOT_COMPARED,)
    return DividedStep(traced, arguments, None)
