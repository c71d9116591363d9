"""One training of a Keras model on the pool: what stands behind `train_function` while it lasts."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.answers import Drain
from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.opening import opening_lines, stateful, turns
from fdt.capture.keras.refreshing import Refreshing
from fdt.capture.keras.train_step import trace_train_step
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteStep, RemoteVariables
from fdt.capture.step.traced_step import TracedStep, refuse_moved
from fdt.capture.watching import Watch
from fdt.data import ArrayBatches, Batches, StreamedBatches
from fdt.element import Element
from fdt.errors import UnsupportedError
from fdt.job import Job
from fdt.report import FitRecord, usage_since
from fdt.session import Session
from fdt.v1 import job_pb2

_ALL = job_pb2.Drain.WHAT_ALL
_METRICS = job_pb2.Drain.WHAT_METRICS
_METRICS_SO_FAR = job_pb2.Drain.WHAT_METRICS_SO_FAR
_WARM_UP_EPOCHS = 5


class Run:
    """One call of `fit`, or the calls of `train_on_batch` of one model.

    Attributes:
        model: The Keras model.
        keras: The generation of Keras that it is of.
        batches: The training data, once Keras has read its arguments.
        steps_in_epoch: How many an epoch has; None if Keras does not know that either.
        sends_arrays: Whether data that are arrays are sent as a whole.
        num_together: How many of the script's batches make one of ours.
        begins_by_resetting: Whether Keras resets the metrics between `prepare` and the first step.
    """

    sends_arrays = True
    begins_by_resetting = True

    def __init__(self, session: Session, keras: KerasVersion, model: Any, audience: Audience):
        self.model, self.keras = model, keras
        self.batches: Batches | None = None
        self.steps_in_epoch: int | None = None
        self._session = session
        self._config = session.config
        self._audience = audience
        self._job = session.job()
        self._begin_account()
        self._step: RemoteStep | None = None
        self._epochs = 0
        self._in_epoch = 0
        self._logs: Any = {}
        self._refreshing = Refreshing()
        self._stale = False
        self._ran_out = False

    def _begin_account(self) -> None:
        self._started_s = time.monotonic()
        self._job.begin_fit()
        self._bytes_before = (self._job.bytes_to_pool, self._job.bytes_from_pool)
        self._usage_before = list(self._job.usage)
        self._steps = 0

    def _leave_out(self) -> None:
        """Begins the account anew."""
        self._refreshing.settle()
        self._pull(_ALL)
        self._begin_account()

    @property
    def num_together(self) -> int:
        """See the class."""
        return self._config.num_workers if self._config.batch == "per-worker" else 1

    def check_streamed(self, reader: str) -> None:
        """Refuses data that have to be streamed where that cannot be done.

        Args:
            reader: What of Keras's reads them.
        """
        if self.num_together > 1:
            raise UnsupportedError(
                f"--batch per-worker needs data in arrays of numbers; model.fit was given data that Keras reads through "
                f"{reader}. Leave the option out, and give the data set the larger batch."
            )

    def prepare(self, force: bool) -> None:
        """Traces the step, unless that is done, and sends what the workers miss."""
        assert self.batches is not None
        # The arrays go up while the step is being traced.
        self.batches.begin(self._job)
        steps = self.model.train_function
        if force or not isinstance(steps, RemoteTrainFunction):
            steps = RemoteTrainFunction()
        if self.begins_by_resetting:
            self.keras.building_metrics(self.model)
        self._step = steps.step(self.batches.element, self._trace)
        steps.run = self
        self.model.train_function = steps
        self._step.begin(self._job)
        self._in_epoch = 0
        self._open()

    def _open(self) -> None:
        """Says what is about to happen."""
        assert self._step is not None and self.batches is not None
        is_watched = self._audience.state_each_step or self._audience.logs_each_step
        lines = opening_lines(self._config, self.batches.batch_size, self._step.traced)
        self._session.opening([*lines, *turns(self._config, is_watched)])

    def _trace(self, element: Element) -> TracedStep:
        asynchronous = self._config.mode == "async"
        several = self._config.num_workers > 1
        goes_on = stateful(list(self.model._flatten_layers()))
        if goes_on and several and (asynchronous or self.num_together > 1):
            raise UnsupportedError(
                f"The layer {goes_on[0]!r} is stateful: row i of a batch goes on where row i of the batch before ended, which "
                "must be on the same worker. Run this script with --workers 1, with --mode sync and its own batch, or build "
                "the layer with stateful=False."
            )
        self.keras.build_ahead(self.model, element)
        assert self.batches is not None
        factor, rows = self._learning_rate_factor(), self.batches.rows
        with self.keras.building_layers(self.model, rows), self._watched() as watch:
            traced = trace_train_step(self._config, self.keras, self.model, element, factor, rows)
        traced.watch = watch
        if asynchronous:
            refuse_moved(traced)
        return traced

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Watch | None]:
        """Within it the step is traced; one that runs eagerly must do nothing that a traced step does not do again."""
        if not self.model.run_eagerly:
            yield None
            return
        watch = Watch()
        with watch.watching():
            yield watch
        if watch.effects:
            raise UnsupportedError(
                f"The model is compiled with run_eagerly=True, and its step does in Python what would be done once only: "
                f"{watch.effects[0]}. Compile it with run_eagerly=False, and do that in a callback."
            )

    def _check_unchanged(self) -> None:
        """Refuses to go on with a step that would be another by now, if it ran eagerly."""
        assert self._step is not None
        watch = self._step.traced.watch
        changed = [] if watch is None else watch.changed()
        if changed:
            raise UnsupportedError(
                f"The model is compiled with run_eagerly=True, and its step reads {changed[0].name}, which has changed "
                f"in this fit (to {changed[0].get()!r}): in the step that the pool runs it is a constant. Keep it in a "
                "tf.Variable."
            )

    def _learning_rate_factor(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        num_workers, rule = self._config.num_workers, self._config.scale_lr
        if self.num_together == 1 or rule == "none":
            return None
        assert isinstance(self.batches, ArrayBatches)
        target = float(num_workers) if rule == "linear" else num_workers**0.5
        return warm_up(target, _WARM_UP_EPOCHS * self.batches.num_batches)

    def run_step(self, iterator: Any) -> Any:
        """Stands for one call of Keras's train_function."""
        assert self._step is not None and self.batches is not None
        items = list(itertools.islice(iterator, self.keras.steps_per_execution(self.model)))
        if not items:
            self._ran_out = True
            raise StopIteration
        self._check_unchanged()
        if not all(map(self.batches.takes, items)):
            self._group()
        if self._in_epoch == 0 or self._audience.state_each_step:
            self._job.assign(self._step.program, *self._step.state.changes())
        for item in items:
            self.batches.run(self._job, self._step.program, item)
        self.keras.count(self.model, len(items))
        first = self._in_epoch == 0
        self._stale = True
        self._in_epoch += len(items)
        self._steps += len(items)
        if self._audience.state_each_step:
            self._pull(_ALL)
        elif self._audience.logs_each_step or (self._audience.progress and self._bar_averages):
            self._pull(_METRICS)
        elif self._audience.progress:
            self._refresh_logs(len(items), first)
        elif not self._logs:
            # Nobody shows these; they have Keras's keys, so that the end of the epoch can fill them in.
            self._logs = self._step.traced.placeholder()
        self._session.count(len(items), self._leave_out)
        return self._logs

    @property
    def _bar_averages(self) -> bool:
        """Whether the progress bar has to hear of every step, because it averages what it is told."""
        assert self._step is not None
        return self.keras.averages_in_bar() and any(map(tf.is_tensor, self._step.traced.outputs()))

    def _group(self) -> None:
        """Goes on with a step for batches whose tensors differ in their numbers of rows."""
        assert self.batches is not None and isinstance(self.model.train_function, RemoteTrainFunction)
        self._refreshing.settle()
        if self._stale:
            self._pull(_ALL)
        self.batches.element = self.batches.element.in_groups()
        self._step = self.model.train_function.step(self.batches.element, self._trace)
        self._step.begin(self._job)
        self._job.assign(self._step.program, *self._step.state.changes())

    def _refresh_logs(self, steps: int, first: bool) -> None:
        """Gives the progress bar the newest numbers, and waits for them in an epoch's first and last step alone.

        Behind the last one all is waited for anyway, and a bar that is full has figures that stay where they are printed.
        """
        assert self._step is not None
        program = self._step.program
        if first or self._in_epoch == self.steps_in_epoch:
            self._pull(_METRICS)
            return
        for drain in self._refreshing.arrived():
            self._accept(drain)
        self._refreshing.sent(steps, self._job.ahead, lambda: self._job.request(program, _METRICS_SO_FAR))

    def end_epoch(self) -> None:
        """Waits for the epoch's steps and puts their outcome into the script's own objects."""
        if self._step is None or not (self._in_epoch or self._ran_out):
            return
        self._refreshing.settle()
        if self._in_epoch:
            self._epochs += 1
            last = self._logs
            self._pull(_ALL if self._audience.state_each_epoch or self._ran_out else _METRICS)
            # Keras may keep the dict it was given last: it has to see the final numbers.
            if isinstance(last, dict) and isinstance(self._logs, dict):
                last.update(self._logs)
        # A step of several fails as one, and so does a compiled one: nothing of it is done.
        if self._ran_out and self.keras.steps_per_execution(self.model) == 1 and not self.model.jit_compile:
            for variable, step in self._step.traced.advances:
                variable.assign_add(step)
        self._in_epoch, self._ran_out = 0, False

    def finish(self) -> None:
        """Brings everything home and writes the account of this training."""
        if self._step is None:
            return
        self._refreshing.settle()
        if self._stale or not self._steps:
            self._pull(_ALL)
        self._record()

    def _pull(self, what: "job_pb2.Drain.What") -> None:
        assert self._step is not None
        self._accept(self._job.request(self._step.program, what))
        if what == _ALL:
            self._stale = False

    def _accept(self, drain: Drain) -> None:
        assert self._step is not None
        answer = drain.result()
        self._step.state.accept(answer.variables, answer.values)
        self._logs = self._step.traced.logs(answer.outputs)
        self._job.show(lambda: _numbers(self._logs))

    def _record(self) -> None:
        assert self.batches is not None
        first, started = self._job.first_step_s, self._started_s
        usage = usage_since(self._usage_before, self._job.usage)
        self._session.record(
            FitRecord(
                steps=self._steps,
                epochs=self._epochs,
                seconds=round(time.monotonic() - started, 6),
                first_step_seconds=None if first is None else round(first - started, 6),
                step_seconds=self._job.step_seconds,
                global_batch=self.batches.batch_size,
                bytes_to_pool=self._job.bytes_to_pool - self._bytes_before[0],
                bytes_from_pool=self._job.bytes_from_pool - self._bytes_before[1],
                bytes_exchanged=int(sum(account["exchanged_bytes"] for account in usage)),
                logs=_numbers(self._logs),
                ranks=usage,
            )
        )


class OnBatchRun(Run):
    """The calls of `train_on_batch`, of one model or of several in turn: the script sees metrics after each, all else stays."""

    begins_by_resetting = False

    def __init__(self, session: Session, keras: KerasVersion, model: Any, variables: RemoteVariables):
        super().__init__(session, keras, model, Audience.of_script())
        self._variables = variables

    def _leave_out(self) -> None:
        self._variables.come_home()
        self._begin_account()

    def prepare(self, force: bool) -> None:
        """Waits for the first batch: only it tells what is to be traced."""
        if force or not isinstance(self.model.train_function, RemoteTrainFunction):
            self.model.train_function = RemoteTrainFunction()
        self.model.train_function.run = self

    def run_step(self, iterator: Any) -> Any:
        """Stands for one call of Keras's train_function."""
        with self._variables.told():
            job = self._variables.job()
            if job is not self._job:
                self.finish()
                self._job = job
                self._begin_account()
            self.batches, item = batches_like(self.keras, next(iter(iterator)))
            if not self.batches.takes(item):
                self.batches.element = self.batches.element.in_groups()
            super().prepare(force=False)
            self._check_unchanged()
            self._logs = self._made(job, item)
        self.keras.count(self.model, 1)
        self._steps += 1
        self._session.count(1, self._leave_out)
        return self._logs

    def _made(self, job: Job, item: Any) -> Any:
        """Makes a step; returns what it gives the script."""
        assert self._step is not None and self.batches is not None
        with self._variables.paused():
            self._variables.enter(job, self._step)
            self.batches.run(job, self._step.program, item)
            self._variables.ran(self._step)
            logs = self._step.traced.logs(self._variables.metrics_of(job, self._step).outputs)
        job.show(lambda: _numbers(logs))
        return logs

    def finish(self) -> None:
        """Brings everything home and writes the account of this training."""
        self._variables.come_home()
        if self._step is not None:
            self._record()


def batches_like(keras: KerasVersion, item: Any) -> tuple[Batches, Any]:
    """Returns the data set of which a batch is one, and the batch with all its leaves arrays or tensors."""
    item = keras.tree.map_structure(_as_array, item)
    batches = StreamedBatches(keras.tree.map_structure(_spec_of, item), keras.tree)
    # The next one may have another.
    batches.batch_size = None
    return batches, item


def _as_array(leaf: Any) -> Any:
    return leaf if leaf is None or tf.is_tensor(leaf) else np.asarray(leaf)


def _spec_of(leaf: Any) -> Any:
    if leaf is None or not isinstance(leaf, np.ndarray):
        return None if leaf is None else tf.type_spec_from_value(leaf)
    return tf.TensorSpec(leaf.shape, tf.string if leaf.dtype.kind in "OSU" else tf.dtypes.as_dtype(leaf.dtype))


def warm_up(target: float, num_steps: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the learning rate's factor: from 1 to `target` in `num_steps` steps, then `target` (Goyal et al. 2017)."""

    def factor(iterations: tf.Tensor) -> tf.Tensor:
        progress = tf.minimum(1.0, tf.cast(iterations, tf.float32) / float(max(1, num_steps)))
        return 1.0 + (target - 1.0) * progress

    return factor


class RemoteTrainFunction:
    """What `model.train_function` is while we stand for it; like Keras's own it lives until the next compile."""

    def __init__(self) -> None:
        self._steps: dict[Any, RemoteStep] = {}
        self.run: Run | None = None

    def step(self, element: Element, trace: Callable[[Element], TracedStep]) -> RemoteStep:
        """Returns the step for batches of this form, traced at the first time."""
        key = element.key()
        watch = self._steps[key].traced.watch if key in self._steps else None
        if key not in self._steps or (watch is not None and watch.changed()):
            self._steps[key] = RemoteStep(trace(element))
        return self._steps[key]

    def __call__(self, iterator: Any) -> Any:
        """Runs one step (or `steps_per_execution` of them) on the pool; returns the newest logs."""
        if self.run is None:
            raise UnsupportedError(
                "train_function was called outside model.fit and model.train_on_batch. Call one of these instead."
            )
        return self.run.run_step(iterator)


def _numbers(logs: Any) -> dict[str, float]:
    """Returns the scalars of the logs; a custom train_step may nest dicts."""
    numbers: dict[str, float] = {}
    for name, value in logs.items() if isinstance(logs, dict) else ():
        if isinstance(value, dict):
            numbers |= _numbers(value)
        elif np.ndim(value) == 0:
            numbers[str(name)] = float(value)
    return numbers
