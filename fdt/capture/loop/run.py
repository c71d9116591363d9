"""The steps that the script's own loop runs, on the pool."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from fdt.capture.behaviour import as_tensorflow_2
from fdt.capture.keras.opening import opening_lines
from fdt.capture.keras.run import RemoteStep
from fdt.capture.loop.arguments import Arguments
from fdt.capture.loop.newest import Newest
from fdt.capture.loop.pending import PendingTensor
from fdt.capture.loop.touch import Touch
from fdt.capture.loop.tracing import Call, trace_step
from fdt.capture.step.traced_step import Known, MetricResult, TracedStep
from fdt.config import RunConfig
from fdt.data import full_spec, raw
from fdt.errors import FdtError
from fdt.messages import job_pb2, program_pb2
from fdt.report import FitRecord, usage_since
from fdt.session import Answer, Drain, Job, Session, StepResult

# Within it the script is told of a job that has failed.
Told = Callable[[], contextlib.AbstractContextManager[None]]
# Who looks oftener than this, between two steps, looks at everything: it comes at once then.
_FEW_LOOKS = 3
METRICS, ALL = job_pb2.Drain.WHAT_METRICS, job_pb2.Drain.WHAT_ALL


class LoopRun:
    """All steps of the script's own loops; see `fdt.capture.loop.calls.Steps`.

    The newest values of variables stay on the pool until the script looks at one of them.
    """

    pretends = False

    def __init__(self, session: Session, touch: Touch):
        self._session, self._touch = session, touch
        self._steps: dict[Any, LoopStep] = {}
        self._newest: Newest[LoopStep] = Newest()
        # How often the script has looked at what the pool had, since the last step.
        self._looks = 0
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
            self._newest.written(step, step.written)
            self._looks = 0
            self._session.count(1, functools.partial(self._leave_out, job))
            if step.returns_metrics:
                answer = self._metrics_home(step, job.request(step.program, METRICS))
                return step.traced.logs(answer.outputs)
            return [] if result is None else step.pending(result, self._told)

    def _leave_out(self, job: Job) -> None:
        """Has the account tell of what comes from now on."""
        self._bring_home(job, self._newest.away())
        self._account = _Account(job)

    def close(self) -> None:
        """Brings everything home and writes the account."""
        if self._account is not None:
            account, self._account = self._account, None
            with as_tensorflow_2(), self._touch.paused():
                self._bring_home(self._session.job(), self._newest.away())
            self._session.record(account.record())

    def _begin(self) -> Job:
        """Returns the job: another one, if the last has failed and the script has been told."""
        if not self._newest.away():
            self._session.renew()
        job = self._session.job()
        if job is not self._job:
            if self._account is not None:
                self._session.record(self._account.record())
            self._job, self._account = job, None
            self._newest.forget_pool()
        return job

    def _step_for(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple["LoopStep", Arguments]:
        config, call = self._session.config, Call(function, args, kwargs)
        for arguments in (call.arguments, call.as_they_are):
            key = (id(function), arguments.form.key())
            if key in self._steps:
                return self._steps[key], arguments
        traced, arguments = trace_step(call, config)
        step = self._steps[id(function), arguments.form.key()] = LoopStep(traced)
        step.kept = call
        self._touch.watch(traced.variables)
        self._session.opening(loop_lines(config, traced, arguments.num_rows))
        return step, arguments

    def _enter(self, job: Job, step: "LoopStep") -> None:
        """Has the pool hold this step's variables in their newest version."""
        step.begin(job)
        from_script, from_steps = self._newest.missing(step, step.places)
        for other, variables in from_steps.items():
            here, there = ([s.places[v] for v in sorted(variables)] for s in (step, other))
            job.move(step.program, here, other.program, there)
            # Either may change what it has without the script's seeing it.
            step.state.forget(here)
            other.state.forget(there)
        if from_script:
            job.assign(step.program, *step.state.changes(from_script))

    def ran_out(self, function: Any) -> None:
        """Counts on what TensorFlow counts on in a step that fails for want of data."""
        for key, step in self._steps.items():
            if key[0] == id(function):
                for variable, count in step.traced.advances:
                    variable.assign_add(count)
                return

    def touched(self, variables: set[int]) -> None:
        """The script is about to look at variables, or to change them."""
        away = self._newest.away(variables)
        if away:
            self._looks += 1
            everything = self._looks > _FEW_LOOKS
            self._bring_home(self._session.job(), self._newest.away() if everything else away)
        self._newest.changed_at_home(variables)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Once the script has been told that the job is over, it has the values that it saw last."""
        try:
            yield
        except FdtError:
            self._newest.forget_pool()
            raise

    def _bring_home(self, job: Job, away: dict["LoopStep", set[int]]) -> None:
        """Gives the script the newest values of variables, from the steps that have them."""
        with self._told():
            # All are asked for before the first is waited for.
            metrics, others = [], []
            for step, variables in away.items():
                if variables <= step.metrics:
                    metrics.append((step, job.request(step.program, METRICS)))
                else:
                    places = sorted(step.places[v] for v in variables)
                    others.append((step, variables, job.request(step.program, ALL, places)))
            for step, drain in metrics:
                self._metrics_home(step, drain)
            for step, variables, drain in others:
                self._accept(step, variables, drain)

    def _metrics_home(self, step: "LoopStep", drain: Drain) -> Answer:
        # Others of them may have come from another step, or from the script, since.
        return self._accept(step, step.metrics & self._newest.away().get(step, set()), drain)

    def _accept(self, step: "LoopStep", variables: set[int], drain: Drain) -> Answer:
        answer = drain.result()
        step.state.accept(answer.variables, answer.values, variables)
        self._newest.came_home(variables)
        return answer


class LoopStep(RemoteStep):
    """A traced step.

    Attributes:
        places: Of its variables, by their ids.
        written: Ids of those that it may change.
        metrics: Ids of those that add up over workers.
        returns_metrics: Whether its outputs are computed from metrics, here.
    """

    def __init__(self, traced: TracedStep):
        super().__init__(traced)
        # What the key of this step names by identity has to stay alive.
        self.kept: Any = None
        self.places = {id(variable): place for place, variable in enumerate(traced.variables)}
        self.written = {id(variable) for variable in traced.variables if traced.writes(variable)}
        described = traced.program.variables
        self.metrics = {v for v, place in self.places.items() if described[place].role == program_pb2.ROLE_METRIC}
        self.returns_metrics = any(isinstance(output, MetricResult) for output in traced.outputs())

    def pending(self, result: StepResult, told: Told) -> list[tf.Tensor]:
        """Returns a step's outputs, which come when somebody looks at them."""

        @functools.cache
        def values() -> list[tf.Tensor]:
            with told():
                outputs: list[tf.Tensor] = self.traced.logs(result.outputs())
                return outputs

        return [
            tf.constant(output.value)
            if isinstance(output, Known)
            else PendingTensor(output.dtype, output.shape, functools.partial(_element, values, number))
            for number, output in enumerate(self.traced.outputs())
        ]


def loop_lines(config: RunConfig, traced: TracedStep, num_rows: int | None) -> list[str]:
    """Returns what to say before the first step."""
    lines = opening_lines(config, num_rows, traced)
    if num_rows is None and config.mode == "sync" and config.num_workers > 1:
        lines[1] = (
            "the step is given no batch: every worker computes it; number of steps and learning rate are the script's"
        )
    return [*lines, "the script's own loop drives: a step's results are waited for where the script looks at them"]


def _element(values: Callable[[], list[tf.Tensor]], number: int) -> tf.Tensor:
    return values()[number]


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
