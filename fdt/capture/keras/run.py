"""Runs one training of a Keras model on the pool; `train_function` calls it for each step."""

import collections
import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.base.usage import usage_since
from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.opening import lacking, opening_lines, turns
from fdt.capture.keras.refreshing import Refreshing
from fdt.capture.keras.traced_run import TracedRun
from fdt.capture.keras.train_function import RemoteTrainFunction
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteStep, RemoteVariables, as_tensorflow_error
from fdt.capture.step.traced_step import TracedStep
from fdt.client.answers import Answer, StepResult
from fdt.client.data import ArrayBatches, ReadBatches
from fdt.client.job import Job
from fdt.client.report import FitRecord
from fdt.client.session import Session
from fdt.errors import FdtError, StepError, UnsupportedError


class Run(TracedRun):
    """One call of `fit`, or the calls of `train_on_batch` of one model, run on the pool."""

    def __init__(
        self, session: Session, keras: KerasVersion, model: Any, audience: Audience, variables: RemoteVariables
    ):
        super().__init__(session.config, keras, model)
        self._session, self.admitted = session, session.config.admitted
        self._audience, self._variables = audience, variables
        self._job = variables.job()
        self._begin_account()
        self._step: RemoteStep | None = None
        self._in_epoch = 0
        self._logs: Any = {}
        self._refreshing = Refreshing()
        self._ran_out = False
        # Whether another run has trained since the last step.
        self._was_suspended = False
        # Outputs of steps, whose summaries are still to be written.
        self._unwritten: collections.deque[StepResult] = collections.deque()

    def _begin_account(self) -> None:
        self._started_s = time.monotonic()
        self._job.step_times.begin()
        self._bytes_before = (self._job.bytes_to_pool, self._job.bytes_from_pool)
        self._usage_before = list(self._job.usage)
        self._first_step = self._job.num_steps
        self._steps = self._epochs = self._test_steps = 0

    def _leave_out(self) -> None:
        """Waits for the steps so far, then starts the account anew without them."""
        self._refreshing.settle()
        self._fetch()
        self._begin_account()

    def missing(self, batches: ReadBatches) -> str:
        return batches.missing(self._job, identified=self.is_elsewhere, mapped=self._config.mapped_folders)

    def lacks(self) -> str | None:
        """Returns what of the model no worker holds; None if they hold all of it."""
        assert self._step is not None
        return lacking(self._config, self._step.traced)

    def has(self, batches: ArrayBatches) -> bool:
        """Returns whether the workers have all of these arrays."""
        return batches.are_at(self._job)

    def prepare(self, force: bool) -> None:
        """Sends the data. The step is traced in its first call, as in Keras, so that it finds what callbacks have set up."""
        assert self.batches is not None
        self.batches.begin(self._job)
        if force or not isinstance(self.model.train_function, RemoteTrainFunction):
            self.model.train_function = RemoteTrainFunction()
        self.model.train_function.run = self

    def _open(self) -> None:
        """Prints the opening lines."""
        assert self._step is not None and self.batches is not None
        lines = opening_lines(self._config, self.batches.batch_size, self._step.traced)
        if isinstance(self.batches, ReadBatches) or self.why_streamed:
            lines.append(self.place_of_data())
        self._session.opening([*lines, *turns(self._config, self._audience.logs_each_step)])

    def _check_unchanged(self) -> None:
        """Refuses to continue if Python values that an eager step reads have changed since it was traced."""
        assert self._step is not None
        watch = self._step.traced.watch
        changed = [] if watch is None else watch.changed()
        if changed:
            raise UnsupportedError(
                f"The model is compiled with run_eagerly=True, and its step reads {changed[0].name}, which has changed "
                f"in this fit (to {changed[0].get()!r}): in the step that the pool runs it is a constant. Keep it in a "
                "tf.Variable."
            )

    def run_step(self, iterator: Any) -> Any:
        """Replaces one call of Keras's train_function."""
        if self._step is None or self._was_suspended:
            self._take_up()
        items = list(itertools.islice(iterator, self.keras.steps_per_execution(self.model)))
        if not items:
            self._ran_out = True
            raise StopIteration
        with self._told(), self._variables.busy():
            return self._run_items(items)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raises a step's error as TensorFlow's, after restoring all values to those before that step. After a job's error the
        script has the values that it read last.
        """
        try:
            yield
        except StepError as error:
            with self._variables.busy():
                self._variables.leave_out_failed_step()
            self._refreshing.settle()
            made, counter = self._job.num_steps - self._first_step, self.keras.counter(self.model)
            if counter is not None:
                counter.assign_add(made - self._steps)
            self._steps = made
            while self._unwritten:
                with contextlib.suppress(StepError):
                    self._write_summaries()
            raise as_tensorflow_error(error) from None
        except FdtError:
            self._variables.forget_pool()
            raise

    def _run_items(self, items: list[Any]) -> Any:
        assert self.batches is not None
        self._check_unchanged()
        if not all(map(self.batches.takes, items)):
            self._group()
        assert self._step is not None
        self._variables.enter(self._job, self._step)
        for item in items:
            self._run_item(item)
        self._variables.ran(self._step)
        first = self._in_epoch == 0
        self._in_epoch += len(items)
        is_last = self._in_epoch == self.steps_in_epoch
        if self._audience.logs_each_step or (self._audience.progress and (first or is_last or self._bar_averages)):
            # After the last step the epoch's end waits anyway, and the figures of a full bar stay on the screen.
            self._pull()
        elif self._audience.progress:
            self._refreshing.refresh(self._step, self._job, len(items), self._show)
        elif not self._logs:
            # These values are not shown; they have Keras's keys, and the end of the epoch fills them in.
            self._logs = self._step.traced.placeholder()
        self._write_summaries(ready_only=True)
        self._session.count(len(items), self._leave_out)
        return self._logs

    def _run_item(self, item: Any) -> None:
        """Sends a step, after Keras's step counter if the step reads it; the counter advances here, as in plain Keras."""
        assert self._step is not None and self.batches is not None
        step, counter = self._step, self.keras.counter(self.model)
        if counter is not None and id(counter) in step.places:
            self._job.assign(step.program, *step.state.changes({id(counter)}))
        result = self.batches.run(self._job, step.program, item, results=bool(step.traced.summaries))
        if result is not None:
            self._unwritten.append(result)
        if counter is not None:
            counter.assign_add(1)
        self._steps += 1

    def _write_summaries(self, ready_only: bool = False) -> None:
        """Writes the summaries of all steps so far, or only of those with results, before the script can read them."""
        assert self._step is not None
        while self._unwritten and (not ready_only or self._unwritten[0].ready()):
            self._step.traced.write_summaries(self._unwritten.popleft().outputs())

    @property
    def _bar_averages(self) -> bool:
        """Whether the progress bar needs every step's values, because it averages them."""
        assert self._step is not None
        return self.keras.averages_in_bar() and any(map(tf.is_tensor, self._step.traced.outputs()))

    def _group(self) -> None:
        """Switches to a step for batches whose tensors differ in their numbers of rows."""
        assert self.batches is not None
        self._fetch()
        self.batches.element = self.batches.element.in_groups()
        self._take_up()

    def _take_up(self) -> None:
        """Starts or resumes with the step for the batches' current form."""
        # The trace looks at variables, not at their values.
        with self._variables.busy():
            self._find_step()
        self._was_suspended = False

    def _find_step(self) -> RemoteStep:
        """Returns the step for the batches' current form, traced if there is none yet, and loaded by the workers."""
        assert self.batches is not None and isinstance(self.model.train_function, RemoteTrainFunction)
        step = self.model.train_function.step(self.batches.element, self._trace)
        step.begin(self._job)
        if step is not self._step:
            # Another step's logs have other keys.
            self._step, self._logs = step, {}
            self._open()
        return step

    @property
    def traced(self) -> TracedStep:
        """The step that trains."""
        assert self._step is not None
        return self._step.traced

    def bring_home(self) -> None:
        """Fetches all values that steps may have changed."""
        if self._step is not None:
            with self._told():
                self._fetch()

    def _fetch(self) -> None:
        self._refreshing.settle()
        self._variables.fetch()
        self._write_summaries()

    @property
    def may_lend(self) -> bool:
        """Whether it has made steps, and the job that made them is still there."""
        return self._step is not None and self._session.has(self._job)

    @contextlib.contextmanager
    def lending(self) -> Iterator[tuple[Job, RemoteVariables]]:
        """Yields the job, for steps that are none of this training's, and the variables."""
        before, started_s = self._job.num_steps, self._started_s
        with self._job.uncounted():
            try:
                yield self._job, self._variables
            finally:
                made = self._job.num_steps - before
                # A callback's own `fit` begins the account anew.
                made = made if self._started_s == started_s else 0
                self._first_step, self._test_steps = self._first_step + made, self._test_steps + made

    def suspend(self) -> None:
        """Fetches all values before another run trains in a callback, and records the steps so far; none counts twice."""
        if self._step is not None:
            self.bring_home()
            if self._steps:
                self._record()

    def resume(self) -> None:
        """Continues after the other run; the values that it left in the script's objects go to the pool with the next step."""
        if isinstance(self.model.train_function, RemoteTrainFunction):
            self.model.train_function.run = self
        self._was_suspended = True
        self._begin_account()

    def end_epoch(self) -> None:
        """Waits for the epoch's steps and stores their results in the script's own objects."""
        if self._step is None or not (self._in_epoch or self._ran_out):
            return
        if self._in_epoch:
            self._epochs += 1
            last = self._logs
            with self._told(), self._variables.busy():
                self._refreshing.settle()
                self._pull()
            if isinstance(self.batches, ReadBatches):
                # Between epochs the script may change files, and a job that is told its steps again would read these.
                self._job.snapshot()
            # Keras may keep the dict it was given last: it has to see the final numbers.
            if isinstance(last, dict) and isinstance(self._logs, dict):
                last.update(self._logs)
        # A call of several steps, or a compiled step, fails as a whole, without effects. An eager step is never begun.
        model = self.model
        if (
            self._ran_out
            and self.keras.steps_per_execution(model) == 1
            and not (model.jit_compile or model.run_eagerly)
        ):
            assert self.batches is not None
            self._step.traced.run_out(self.batches.element.specs_of_rows(self.batches.rows))
        self._in_epoch, self._ran_out = 0, False

    def finish(self) -> None:
        """Fetches all values from the pool and records the account of this training."""
        if self._step is None:
            return
        self.bring_home()
        if self._steps or not self._was_suspended:
            self._record()

    def _pull(self) -> None:
        """Waits for the steps so far, and fetches their metrics."""
        assert self._step is not None
        self._show(self._variables.metrics_of(self._job, self._step))
        self._write_summaries()

    def _show(self, answer: Answer) -> None:
        assert self._step is not None
        self._logs = self._step.traced.logs(answer.outputs)
        self._job.show(lambda: numbers_of(self._logs))

    def _record(self) -> None:
        assert self.batches is not None
        first, started = self._job.step_times.first_step_s, self._started_s
        usage = usage_since(self._usage_before, self._job.usage)
        self._session.record(
            FitRecord(
                steps=self._steps,
                epochs=self._epochs,
                seconds=round(time.monotonic() - started, 6),
                first_step_seconds=None if first is None else round(first - started, 6),
                step_seconds=self._job.step_times.step_seconds,
                global_batch=self.batches.batch_size,
                bytes_to_pool=self._job.bytes_to_pool - self._bytes_before[0],
                bytes_from_pool=self._job.bytes_from_pool - self._bytes_before[1],
                bytes_exchanged=int(sum(account["exchanged_bytes"] for account in usage)),
                logs=numbers_of(self._logs),
                ranks=usage,
                test_steps=self._test_steps,
            )
        )


def numbers_of(logs: Any) -> dict[str, float]:
    """Returns the scalars of the logs; a custom train_step may nest dicts."""
    numbers: dict[str, float] = {}
    for name, value in logs.items() if isinstance(logs, dict) else ():
        if isinstance(value, dict):
            numbers |= numbers_of(value)
        elif np.ndim(value) == 0:
            numbers[str(name)] = float(value)
    return numbers
