"""Runs the steps of the script's own loop on the pool."""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.base.usage import usage_since
from fdt.capture.behaviour import as_tensorflow_2
from fdt.capture.keras.opening import opening_lines
from fdt.capture.loop.arguments import AnyArguments, Arguments, ElementForm, Form, at_a_glance
from fdt.capture.loop.calls import Steps
from fdt.capture.loop.handlers import handles_each_step
from fdt.capture.loop.pending import PendingTensor
from fdt.capture.loop.tracing import Call, trace_step
from fdt.capture.remote import RemoteStep, RemoteVariables
from fdt.capture.step.traced_step import Known, TracedStep
from fdt.client.answers import StepResult
from fdt.client.job import Job
from fdt.client.report import FitRecord
from fdt.client.session import Session

# Sends numbers, by name, for the pool to show; see `Job.show`.
Show = Callable[[Callable[[], Mapping[str, float]]], None]
# For how many sizes and constants it is remembered which step takes them.
_MAX_SEEN = 1024
# Raises a failed job's error in the script.
Told = Callable[[], contextlib.AbstractContextManager[None]]


class LoopRun(Steps):
    """All steps of the script's own loops."""

    pretends = False

    def __init__(self, session: Session, variables: RemoteVariables):
        self._session, self._variables = session, variables
        # By function and form of its arguments: for each size if plain python's random numbers differ by size, else for "".
        self._steps: dict[tuple[int, Any], dict[str, LoopStep]] = {}
        # The steps of calls whose arguments are told apart at a glance, and the forms of these.
        self._seen: dict[Any, tuple[LoopStep, Form]] = {}
        self._account: _Account | None = None

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Runs one step; returns its outputs, flat."""
        with self._variables.told(), self._variables.busy():
            job = self._variables.job()
            account = self._account_of(job)
            step, arguments = self._step_for(function, args, kwargs)
            self._variables.enter(job, step)
            lazy = bool(step.traced.program.outputs) and not step.returns_metrics
            result = arguments.run(job, step.program, lazy)
            self._variables.ran(step)
            if handles_each_step():
                job.wait()
            account.steps += 1
            self._session.count(1, functools.partial(self._leave_out, job))
            if step.returns_metrics:
                outputs: list[tf.Tensor] = step.traced.logs(self._variables.metrics_of(job, step).outputs)
                job.show(lambda: _numbers(outputs))
                return outputs
            return [] if result is None else step.pending(result, self._variables.told, job.show)

    def _leave_out(self, job: Job) -> None:
        """Waits for the steps so far, then starts the account anew without them."""
        self._variables.come_home()
        self._account = _Account(job)

    def close(self) -> None:
        """Fetches all values from the pool and records the account."""
        if self._account is not None:
            account, self._account = self._account, None
            with as_tensorflow_2():
                self._variables.come_home()
            self._session.record(account.record())

    def _account_of(self, job: Job) -> "_Account":
        if self._account is not None and self._account.job is not job:
            self._session.record(self._account.record())
            self._account = None
        if self._account is None:
            self._account = _Account(job)
        return self._account

    def _step_for(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple["LoopStep", AnyArguments]:
        glance = at_a_glance(function, args, kwargs)
        if glance is not None and glance[1] in self._seen:
            known, form = self._seen[glance[1]]
            return known, Arguments(glance[0], form)
        step, arguments = self._found_or_traced(function, args, kwargs)
        if glance is not None and isinstance(arguments, Arguments) and len(self._seen) < _MAX_SEEN:
            self._seen[glance[1]] = step, arguments.form
        return step, arguments

    def _found_or_traced(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple["LoopStep", AnyArguments]:
        config, call = self._session.config, Call(function, args, kwargs)
        for arguments in call.in_all_forms():
            by_size = self._steps.get((id(function), arguments.form.key()), {})
            step = by_size.get("") or by_size.get(call.sizes)
            if step is not None:
                if isinstance(arguments, Arguments) and isinstance(step.form, Form):
                    arguments.form = step.form
                return step, arguments
        traced, arguments = trace_step(call, config)
        by_size = self._steps.setdefault((id(function), arguments.form.key()), {})
        if not by_size:
            self._session.opening(loop_lines(config, traced, arguments.num_rows))
        step = by_size[call.sizes if traced.draws_by_size else ""] = LoopStep(traced, call, arguments.form)
        return step, arguments

    def drop(self, function: Any) -> None:
        """Forgets the steps of a tf.function; the workers forget their programs, unless others are the same."""
        for key in [key for key in self._steps if key[0] == id(function)]:
            del self._steps[key]
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != id(function)}

    def ran_out(self, function: Any) -> None:
        """Applies to the variables what TensorFlow still does in a step that fails because its data have ended."""
        for (called, _), by_size in self._steps.items():
            if called == id(function):
                next(iter(by_size.values())).traced.run_out()
                return


class LoopStep(RemoteStep):
    """A step of a loop: its results are waited for when the script reads them.

    Attributes:
        form: The form of its arguments.
    """

    def __init__(self, traced: TracedStep, kept: Any, form: Form | ElementForm):
        """
        Args:
            traced: The step.
            kept: Objects whose ids are in this step's key; kept alive with the step.
            form: The form of its arguments.
        """
        super().__init__(traced)
        self._kept, self.form = kept, form

    def pending(self, result: StepResult, told: Told, show: Show) -> list[tf.Tensor]:
        """Returns a step's outputs as pending tensors; when the script reads them, they are also shown on the pool."""

        @functools.cache
        def values() -> list[tf.Tensor]:
            with told():
                outputs: list[tf.Tensor] = self.traced.values(result.outputs())
                show(lambda: _numbers(outputs))
                return outputs

        return [
            tf.constant(output.value)
            if isinstance(output, Known)
            else PendingTensor(output.dtype, output.shape, functools.partial(_element, values, number))
            for number, output in enumerate(self.traced.outputs())
        ]


def loop_lines(config: RunConfig, traced: TracedStep, num_rows: int | None) -> list[str]:
    """Returns the lines to print before the first step."""
    lines = opening_lines(config, num_rows, traced)
    if num_rows is None and config.mode == "sync" and config.num_workers > 1:
        lines[1] = (
            "the step is given no batch: every worker computes it; number of steps and learning rate are the script's"
        )
    return [*lines, "the script's own loop drives: a step's results are waited for where the script looks at them"]


def _numbers(outputs: list[tf.Tensor]) -> dict[str, float]:
    """Returns a step's outputs that are single real numbers, named by their place."""
    scalars = {n: float(o.numpy()) for n, o in enumerate(outputs) if o.dtype.is_floating and not o.shape.rank}
    return {"result" if len(scalars) == 1 else f"result {n}": value for n, value in scalars.items()}


def _element(values: Callable[[], list[tf.Tensor]], number: int) -> tf.Tensor:
    return values()[number]


class _Account:
    """The account of the steps that one job has run."""

    def __init__(self, job: Job):
        self.job = job
        self._started_s = time.monotonic()
        self._bytes = (job.bytes_to_pool, job.bytes_from_pool)
        self._usage = list(job.usage)
        self.steps = 0
        job.step_times.begin()

    def record(self) -> FitRecord:
        """Returns the account."""
        first = self.job.step_times.first_step_s
        usage = usage_since(self._usage, self.job.usage)
        return FitRecord(
            steps=self.steps,
            epochs=0,
            seconds=round(time.monotonic() - self._started_s, 6),
            first_step_seconds=None if first is None else round(first - self._started_s, 6),
            step_seconds=self.job.step_times.step_seconds,
            global_batch=None,
            bytes_to_pool=self.job.bytes_to_pool - self._bytes[0],
            bytes_from_pool=self.job.bytes_from_pool - self._bytes[1],
            bytes_exchanged=int(sum(account["exchanged_bytes"] for account in usage)),
            logs={},
            ranks=usage,
        )
