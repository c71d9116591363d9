"""The steps that the script's own loop runs, on the pool."""

import contextlib
import functools
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from fdt.capture.behaviour import as_tensorflow_2
from fdt.capture.keras.opening import opening_lines
from fdt.capture.keras.run import RemoteStep
from fdt.capture.loop.arguments import Arguments
from fdt.capture.loop.pending import PendingTensor
from fdt.capture.loop.touch import Touch
from fdt.capture.loop.tracing import LoopTrace
from fdt.capture.loop.trial import OneSizeError, divide
from fdt.capture.refusals import in_place
from fdt.capture.step.traced_step import Known, MetricResult
from fdt.config import RunConfig
from fdt.data import full_spec, raw
from fdt.errors import FdtError, UnsupportedError
from fdt.messages import job_pb2, program_pb2
from fdt.report import FitRecord, usage_since
from fdt.session import Job, Session, StepResult

# Within it the script is told of a job that has failed.
Told = Callable[[], contextlib.AbstractContextManager[None]]
METRICS, ALL = job_pb2.Drain.WHAT_METRICS, job_pb2.Drain.WHAT_ALL


class LoopRun:
    """All steps of the script's own loops; see `fdt.capture.loop.calls.Steps`.

    The newest values of variables stay on the pool until the script looks at one of them.
    """

    pretends = False

    def __init__(self, session: Session, touch: Touch):
        self._session, self._touch = session, touch
        self._steps: dict[Any, LoopStep] = {}
        # The step whose variables the pool holds in their newest values; those that the script may have changed since.
        self._current: LoopStep | None = None
        self._changed: set[int] = set()
        self._account: _Account | None = None
        self._job: Job | None = None

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Runs one step; returns its outputs, flat."""
        with self._touch.paused(), self._told():
            job = self._begin()
            if self._account is None:
                self._account = _Account(job)
            step, arguments = self._step_for(function, args, kwargs)
            self._enter(job, step)
            arrays = arguments.encode()
            lazy = bool(step.traced.program.outputs) and not step.returns_metrics
            result = job.feed(step.program, [raw(a) for a in arrays], [full_spec(a) for a in arrays], lazy)
            self._account.steps += 1
            step.stale_metrics = step.stale = True
            self._session.count(1, functools.partial(self._leave_out, job, step))
            if step.returns_metrics:
                return self._pull(job, step, METRICS, arguments.num_rows)
            return [] if result is None else step.pending(result, arguments.num_rows, self._told)

    def _leave_out(self, job: Job, step: "LoopStep") -> None:
        """Has the account tell of what comes from now on."""
        self._pull(job, step, ALL)
        self._account = _Account(job)

    def close(self) -> None:
        """Brings everything home and writes the account."""
        if self._account is not None and self._current is not None:
            account, self._account = self._account, None
            with as_tensorflow_2(), self._touch.paused():
                self._pull(self._session.job(), self._current, ALL)
            self._session.record(account.record())

    def _begin(self) -> Job:
        """Returns the job: another one, if the last has failed and the script has been told."""
        if self._current is None or not (self._current.stale or self._current.stale_metrics):
            self._session.renew()
        job = self._session.job()
        if job is not self._job:
            if self._account is not None:
                self._session.record(self._account.record())
            self._job, self._current, self._account = job, None, None
        return job

    def _step_for(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple["LoopStep", Arguments]:
        config = self._session.config
        open_arguments = Arguments(function, args, kwargs)
        fixed = Arguments(function, args, kwargs, rows_each(open_arguments.num_rows, config))
        for arguments in (open_arguments, fixed):
            key = (id(function), arguments.form.key())
            if key in self._steps:
                return self._steps[key], arguments
        step = trace_step(function, open_arguments, fixed, config)
        arguments = fixed if step.traced.program.rows else open_arguments
        self._steps[id(function), arguments.form.key()] = step
        step.kept = function, open_arguments.form, fixed.form
        self._touch.watch(step.traced.variables)
        self._session.opening(loop_lines(config, step, arguments.num_rows))
        return step, arguments

    def _enter(self, job: Job, step: "LoopStep") -> None:
        """Has the pool hold this step's variables as the script has them."""
        step.begin(job)
        if self._current is step:
            job.assign(step.program, *step.state.changes(self._changed))
        else:
            if self._current is not None:
                self._pull(job, self._current, ALL)
            job.assign(step.program, *step.state.changes())
            self._current = step
        self._changed.clear()

    def ran_out(self, function: Any) -> None:
        """Counts on what TensorFlow counts on in a step that fails for want of data."""
        for key, step in self._steps.items():
            if key[0] == id(function):
                for variable, count in step.traced.advances:
                    variable.assign_add(count)
                return

    def touched(self, variables: set[int]) -> None:
        """The script is about to look at variables, or to change them."""
        step = self._current
        if step is not None and variables & step.variables:
            what = METRICS if variables & step.variables <= step.metrics else ALL
            self._pull(self._session.job(), step, what)
        self._changed |= variables

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Once the script has been told that the job is over, it has the values that it saw last."""
        try:
            yield
        except FdtError:
            if self._current is not None:
                self._current.stale = self._current.stale_metrics = False
            raise

    def _pull(
        self, job: Job, step: "LoopStep", what: "job_pb2.Drain.What", num_rows: int | None = None
    ) -> list[tf.Tensor]:
        fresh = not (step.stale if what == ALL else step.stale_metrics)
        if fresh and num_rows is None:
            return []
        with self._told():
            drained, packed = job.request(step.program, what).result()
        step.state.accept(drained.state.variables, packed)
        step.stale_metrics = False
        step.stale = step.stale and what != ALL
        return step.traced.logs(drained.outputs, num_rows) if num_rows is not None or what == METRICS else []


class LoopStep(RemoteStep):
    """A traced step.

    Attributes:
        looks_across: By how much, relatively, gradients of a divided batch differ from those of the whole.
        variables: Ids.
        metrics: Ids of those that add up over workers.
        returns_metrics: Whether its outputs are computed from metrics, here.
        stale: Whether the pool has newer values than the script.
        stale_metrics: The same of metrics.
    """

    def __init__(self, traced: Any, rows: int | None, looks_across: float = 0.0):
        super().__init__(traced)
        traced.program.rows = rows or 0
        # What the key of this step names by identity has to stay alive.
        self.kept: Any = None
        self.looks_across = looks_across
        pairs = list(zip(traced.variables, traced.program.variables, strict=True))
        self.variables = {id(v) for v, _ in pairs}
        self.metrics = {id(v) for v, described in pairs if described.role == program_pb2.ROLE_METRIC}
        self.returns_metrics = any(isinstance(output, MetricResult) for output in traced.outputs())
        self.stale = self.stale_metrics = False

    def pending(self, result: StepResult, num_rows: int | None, told: Told) -> list[tf.Tensor]:
        """Returns a step's outputs, which come when somebody looks at them."""

        @functools.cache
        def values() -> list[tf.Tensor]:
            with told():
                outputs: list[tf.Tensor] = self.traced.logs(result.outputs(), num_rows)
                return outputs

        return [
            tf.constant(output.value)
            if isinstance(output, Known)
            else PendingTensor(
                output.dtype, _with_rows(output.shape, num_rows), functools.partial(_element, values, number)
            )
            for number, output in enumerate(self.traced.outputs())
        ]


def loop_lines(config: RunConfig, step: LoopStep, num_rows: int | None) -> list[str]:
    """Returns what to say before the first step."""
    lines = opening_lines(step.traced.normalisations, config, num_rows, step.traced)
    if step.looks_across:
        lines.append(
            f"the loss looks across the rows of a batch: every worker sees its own rows only; on the first batch, cut in two, "
            f"gradients differ by {step.looks_across:.1%}"
        )
    if config.mode == "sync" and config.num_workers > 1:
        rows, kept = step.traced.program.rows, "number of steps and learning rate are the script's"
        if num_rows is None:
            lines[1] = f"the step is given no batch: one worker computes it, all make its update; {kept}"
        elif rows:
            whose = "one worker computes" if rows == num_rows else f"{num_rows // rows} workers compute"
            lines[1] = (
                f"global batch {num_rows}, as in the script: the step works for a fixed number of rows only, so {whose} "
                f"on {rows}, all make its update; {kept}"
            )
    return [*lines, "the script's own loop drives: a step's results are waited for where the script looks at them"]


def rows_each(num_rows: int | None, config: RunConfig) -> int:
    """Returns how many rows a worker gets of a batch, if each that gets some has to get as many."""
    rows = num_rows or 1
    if config.mode == "async":
        return rows
    return rows // max(n for n in range(1, config.num_workers + 1) if rows % n == 0)


def trace_step(function: Any, arguments: Arguments, fixed: Arguments, config: RunConfig) -> LoopStep:
    """Traces a step for any number of rows; where the script's code needs to know the number, for the one a worker gets.

    Args:
        function: The tf.function.
        arguments: Of its call.
        fixed: The same, for the rows of one worker.
        config: The run's configuration.

    Raises:
        UnsupportedError: The step cannot be captured, or not divided over so many workers.
    """
    # The script's function is traced once more than it would be; what it prints meanwhile it has printed already.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            step = _traced(function, arguments, config)
        except OneSizeError as error:
            if fixed.form.rows != fixed.num_rows:
                raise UnsupportedError(str(error)) from error
            # One worker gets all of the batch anyway.
            step = _traced(function, fixed, config)
        except FdtError:
            raise
        except Exception:  # the script's own code runs here
            step = _traced(function, fixed, config)
    if config.mode == "async" and not any(step.traced.writes(v) for v in step.traced.trained()):
        raise UnsupportedError(
            "The step computes gradients and keeps them for another step, which is to apply them. Asynchronous training "
            "needs both in one step: leave it to the optimizer (its gradient_accumulation_steps), or run this script with "
            "--mode sync."
        )
    return step


def _traced(function: Any, arguments: Arguments, config: RunConfig) -> LoopStep:
    if config.mode == "async" or config.num_workers == 1:
        return LoopStep(LoopTrace().step(function, arguments.form), arguments.form.rows)
    rows = arguments.form.rows
    if rows is not None and rows == arguments.num_rows:
        # All of a batch goes to the first worker: there is nothing to put together.
        return LoopStep(LoopTrace().step(function, arguments.form), rows)
    with in_place():
        trial = LoopTrace(divides=True).trial(function, arguments.form)
        twice = trial if rows is None else LoopTrace(divides=True).trial(function, arguments.form.with_rows(2 * rows))
        division = divide(trial, twice, arguments)
    return LoopStep(
        LoopTrace(divides=True, division=division).step(function, arguments.form), rows, division.looks_across
    )


def _element(values: Callable[[], list[tf.Tensor]], number: int) -> tf.Tensor:
    return values()[number]


def _with_rows(shape: tf.TensorShape, num_rows: int | None) -> tf.TensorShape:
    return tf.TensorShape([num_rows if d is None else d for d in shape.as_list()])


class _Account:
    """What is written down of the steps."""

    def __init__(self, job: Job):
        self._job = job
        self._started_s = time.monotonic()
        self._bytes = (job.bytes_to_pool, job.bytes_from_pool)
        self._usage = list(job.usage)
        self.steps = 0
        job.begin_fit()

    def record(self) -> FitRecord:
        """Returns the account."""
        first = self._job.first_step_s
        usage = usage_since(self._usage, self._job.usage)
        return FitRecord(
            steps=self.steps,
            epochs=0,
            seconds=round(time.monotonic() - self._started_s, 6),
            first_step_seconds=None if first is None else round(first - self._started_s, 6),
            step_seconds=self._job.step_seconds,
            global_batch=None,
            bytes_to_pool=self._job.bytes_to_pool - self._bytes[0],
            bytes_from_pool=self._job.bytes_from_pool - self._bytes[1],
            bytes_exchanged=int(sum(account["exchanged_bytes"] for account in usage)),
            logs={},
            ranks=usage,
        )
