"""Keras's `fit`, distributed: Keras's own loop runs on, only what it calls for each step goes to the pool.

Keras calls `make_train_function()` once and `train_function(iterator)` for each step. We stand in for these two, and for
the epoch iterator, which then yields row numbers instead of data. Callbacks, History, the progress bar, validation and
everything else is Keras, untouched.
"""

import contextlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.utils.python_utils import is_default

from fdt.capture.keras_opening import opening_lines
from fdt.capture.keras_tracing import StepTrace, TracedStep, build_ahead
from fdt.capture.patch import Patches
from fdt.data import ArrayBatches, array_batches
from fdt.errors import FdtError, UnsupportedError
from fdt.messages import job_pb2
from fdt.program import tensor_spec
from fdt.report import FitRecord, usage_since
from fdt.session import Drain, Session
from fdt.state import SharedState

_ALL = job_pb2.Drain.WHAT_ALL
_METRICS = job_pb2.Drain.WHAT_METRICS
_METRICS_SO_FAR = job_pb2.Drain.WHAT_METRICS_SO_FAR
# Callbacks of Keras whose batch hooks look at the logs and at nothing else, and those whose batch hooks do nothing
# unless an attribute says otherwise.
_LOGS_ONLY = (keras.callbacks.TerminateOnNaN, keras.callbacks.TensorBoard)
_IDLE_UNLESS = {
    keras.callbacks.ModelCheckpoint: "save_freq",
    keras.callbacks.BackupAndRestore: "save_freq",
    keras.callbacks.TensorBoard: "update_freq",
}
_SHOWS_PROGRESS = (keras.callbacks.ProgbarLogger,)
# How often a progress bar is given fresh numbers inside an epoch.
_REFRESH_S = 0.1


class KerasFit:
    """The hooks. One `fit` at a time: Keras's own trainer is not made for more."""

    def __init__(self, session: Session):
        self._session = session
        self._run: FitRun | None = None

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        trainer = tf_trainer.TensorFlowTrainer
        patches.wrap(trainer, "fit", self._fit)
        patches.wrap(trainer, "make_train_function", self._make_train_function)
        patches.wrap(trainer, "train_on_batch", _refuse_train_on_batch)
        patches.set(tf_trainer, "TFEpochIterator", self._epoch_iterator_class())

    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._run is not None:
            raise UnsupportedError(
                "model.fit was called while another model.fit was running (in a callback or another thread). Fit one "
                "model after the other."
            )
        arguments = inspect.signature(original).bind(model, *args, **kwargs)
        arguments.apply_defaults()
        _check_model(model)
        self._run = FitRun(self._session, model, arguments.arguments)
        try:
            history = original(model, *args, **kwargs)
            self._run.finish()
            return history
        except FdtError:
            raise
        except BaseException:
            # The script may catch it and go on: it then finds the weights as far as the training came.
            with contextlib.suppress(FdtError):
                self._run.finish()
            raise
        finally:
            self._run = None

    def _make_train_function(self, original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        if self._run is None or self._run.model is not model:
            raise UnsupportedError(
                "make_train_function was called outside model.fit; a train_function made here would train on this "
                "machine alone. Call model.fit instead."
            )
        self._run.prepare(force)
        return model.train_function

    def _epoch_iterator_class(self) -> type:
        hooks = self

        class EpochIterator(tf_trainer.TFEpochIterator):  # type: ignore[misc]
            """Keras's, but the one that trains yields row numbers and drains the job at the end of an epoch."""

            _fdt_run: FitRun | None = None

            def __init__(self, *args: Any, **kwargs: Any):
                run = hooks._run
                if run is not None and run.batches is None:
                    self._fdt_run = run
                super().__init__(*args, **kwargs)

            @property
            def data_adapter(self) -> Any:
                return self._fdt_adapter

            @data_adapter.setter
            def data_adapter(self, adapter: Any) -> None:
                self._fdt_adapter = adapter if self._fdt_run is None else self._fdt_run.take(adapter)

            @contextlib.contextmanager
            def catch_stop_iteration(self) -> Iterator[None]:
                with super().catch_stop_iteration():
                    yield
                if self._fdt_run is not None:
                    self._fdt_run.end_epoch()

        return EpochIterator


class FitRun:
    """One call of `fit`.

    Attributes:
        batches: The training data, once Keras has read its arguments.
    """

    def __init__(self, session: Session, model: Any, arguments: dict[str, Any]):
        self.model = model
        self.batches: ArrayBatches | None = None
        self._session = session
        self._config = session.config
        self._started_s = time.monotonic()
        self._job = session.job()
        self._job.begin_fit()
        self._bytes_before = (self._job.bytes_to_pool, self._job.bytes_from_pool)
        self._usage_before = list(self._job.usage)
        callbacks = _flatten_callbacks(arguments["callbacks"])
        hooked = [c for c in callbacks if _has_batch_hooks(c)]
        self._lock_logs = bool(hooked)
        self._lock_state = any(not isinstance(c, _LOGS_ONLY) for c in hooked)
        # Who could look at the weights at the end of an epoch?
        validates = arguments["validation_data"] is not None or bool(arguments["validation_split"])
        self._state_each_epoch = bool(callbacks) or validates or getattr(model.optimizer, "use_ema", False)
        self._shows_progress = arguments["verbose"] not in (0, 2) or any(
            isinstance(c, _SHOWS_PROGRESS) for c in callbacks
        )
        self._step: RemoteStep | None = None
        self._data = -1
        self._steps = 0
        self._epochs = 0
        self._in_epoch = 0
        self._logs: Any = {}
        self._refresh: Drain | None = None
        self._refreshed_s = 0.0
        self._stale = False

    def take(self, adapter: Any) -> Any:
        """Receives Keras's adapter of the training data; returns the one that yields row numbers."""
        factor = self._config.num_workers if self._config.batch == "per-worker" else 1
        self.batches = array_batches(adapter, factor)
        return self.batches.rows

    def prepare(self, force: bool) -> None:
        """Traces the step, unless that is done, and sends what the workers miss."""
        assert self.batches is not None
        # The arrays go up while the step is being traced.
        specs = [_full_spec(array) for array in self.batches.arrays]
        binding = self._job.bind_later([a.reshape(-1).view(np.uint8) for a in self.batches.arrays], specs)
        steps = self.model.train_function
        if force or not isinstance(steps, RemoteTrainFunction):
            steps = RemoteTrainFunction()
        self._step = steps.step(self.batches, self._trace)
        steps.run = self
        self.model.train_function = steps
        self._step.program = self._job.load(self._step.traced.program)
        self._data = binding.result()
        self._session.opening(
            opening_lines(self.model, self._config, self.batches.batch_size, self._step.traced.program)
        )
        self._in_epoch = 0

    def _trace(self, batches: ArrayBatches) -> TracedStep:
        build_ahead(self.model, batches.structure, batches.specs())
        trace = StepTrace(self.model.metrics, self._learning_rate_factor(batches))
        return trace.trace(self.model.train_step, batches.structure, batches.specs())

    def _learning_rate_factor(self, batches: ArrayBatches) -> Callable[[tf.Tensor], tf.Tensor] | None:
        num_workers, rule = self._config.num_workers, self._config.scale_lr
        if self._config.batch != "per-worker" or rule == "none" or num_workers == 1:
            return None
        target = float(num_workers) if rule == "linear" else num_workers**0.5
        return warm_up(target, _WARM_UP_EPOCHS * batches.rows.num_batches)

    def run_step(self, iterator: Any) -> Any:
        """Stands for one call of Keras's train_function."""
        assert self._step is not None
        batches = list(itertools.islice(iterator, self.model.steps_per_execution))
        if not batches:
            raise StopIteration
        if self._in_epoch == 0 or self._lock_state:
            self._job.assign(self._step.program, *self._step.state.changes())
        for rows in batches:
            indices = rows[0] if isinstance(rows, tuple) else rows
            self._job.run(self._step.program, self._data, indices.numpy().astype("<i8", copy=False).tobytes())
        first = self._in_epoch == 0
        self._stale = True
        self._in_epoch += len(batches)
        self._steps += len(batches)
        if self._lock_state:
            self._pull(_ALL)
        elif self._lock_logs:
            self._pull(_METRICS)
        elif self._shows_progress:
            self._refresh_logs(first)
        elif not self._logs:
            # Nobody shows these; they have Keras's keys, so that the end of the epoch can fill them in.
            self._logs = self._step.traced.placeholder()
        return self._logs

    def _refresh_logs(self, first: bool) -> None:
        """Gives the progress bar the newest numbers, without ever waiting for them after an epoch's first step."""
        assert self._step is not None
        if first:
            self._pull(_METRICS)
        elif self._refresh is None:
            if time.monotonic() - self._refreshed_s > _REFRESH_S:
                self._refresh = self._job.request(self._step.program, _METRICS_SO_FAR)
        elif self._refresh.ready():
            self._accept(self._refresh)
            self._refresh = None

    def end_epoch(self) -> None:
        """Waits for the epoch's steps and puts their outcome into the script's own objects."""
        if self._step is None or self._in_epoch == 0:
            return
        self._epochs += 1
        self._settle_refresh()
        if self._stale or self._state_each_epoch:
            last = self._logs
            self._pull(_ALL if self._state_each_epoch else _METRICS)
            # Keras may keep the dict it was given last: it has to see the final numbers.
            if isinstance(last, dict) and isinstance(self._logs, dict):
                last.update(self._logs)
        self._in_epoch = 0

    def finish(self) -> None:
        """Brings everything home and writes the account of this `fit`."""
        if self._step is None:
            return
        self._settle_refresh()
        if self._stale or not self._steps:
            self._pull(_ALL)
        self._record()

    def _settle_refresh(self) -> None:
        if self._refresh is not None:
            self._refresh.result()
            self._refresh = None

    def _pull(self, what: "job_pb2.Drain.What") -> None:
        assert self._step is not None
        self._accept(self._job.request(self._step.program, what))
        if what == _ALL:
            self._stale = False

    def _accept(self, drain: Drain) -> None:
        assert self._step is not None
        drained, packed = drain.result()
        self._step.state.accept(drained.state.variables, packed)
        self._logs = self._step.traced.logs(drained.outputs)
        self._refreshed_s = time.monotonic()

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
                global_batch=self.batches.batch_size,
                bytes_to_pool=self._job.bytes_to_pool - self._bytes_before[0],
                bytes_from_pool=self._job.bytes_from_pool - self._bytes_before[1],
                bytes_exchanged=int(sum(account["exchanged_bytes"] for account in usage)),
                logs=_numbers(self._logs),
                ranks=usage,
            )
        )


_WARM_UP_EPOCHS = 5


def warm_up(target: float, num_steps: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the learning rate's factor: from 1 to `target` in `num_steps` steps, then `target` (Goyal et al. 2017)."""

    def factor(iterations: tf.Tensor) -> tf.Tensor:
        progress = tf.minimum(1.0, tf.cast(iterations, tf.float32) / float(max(1, num_steps)))
        return 1.0 + (target - 1.0) * progress

    return factor


class RemoteStep:
    """One traced step and what the pool holds of its variables."""

    def __init__(self, traced: TracedStep):
        self.traced = traced
        self.state = SharedState(traced.program, traced.variables)
        self.program = -1


class RemoteTrainFunction:
    """What `model.train_function` is while we stand for it; like Keras's own it lives until the next compile."""

    def __init__(self) -> None:
        self._steps: dict[Any, RemoteStep] = {}
        self.run: FitRun | None = None

    def step(self, batches: ArrayBatches, trace: Callable[[ArrayBatches], TracedStep]) -> RemoteStep:
        """Returns the step for batches of this form, traced at the first time."""
        structure = keras.tree.map_structure(lambda leaf: leaf is None, batches.structure)
        key = (repr(structure), tuple((tuple(s.shape.as_list()), s.dtype.name) for s in batches.specs()))
        if key not in self._steps:
            self._steps[key] = RemoteStep(trace(batches))
        return self._steps[key]

    def __call__(self, iterator: Any) -> Any:
        """Runs one step (or `steps_per_execution` of them) on the pool; returns the newest logs."""
        assert self.run is not None
        return self.run.run_step(iterator)


def _check_model(model: Any) -> None:
    if not model.compiled:
        return  # Keras itself says so.
    if model.run_eagerly:
        raise UnsupportedError(
            "The model is compiled with run_eagerly=True (or keras.config.run_functions_eagerly is on): an eager step "
            "cannot be captured. Compile it with run_eagerly=False."
        )
    if model._distribute_strategy is not None:
        raise UnsupportedError(
            f"The model was built under {type(model._distribute_strategy).__name__}. Two ways of distributing cannot be "
            "combined: build the model without a strategy scope."
        )
    for name in ("make_train_function", "train_function"):
        if name in _own_attributes(type(model)):
            raise UnsupportedError(
                f"{type(model).__name__} overrides {name}, which replaces the step that is distributed. Put the step into "
                "train_step(self, data)."
            )


def _own_attributes(model_class: type) -> set[str]:
    names: set[str] = set()
    for base in model_class.__mro__:
        if base is tf_trainer.TensorFlowTrainer:
            break
        if not base.__module__.startswith("keras."):
            names |= set(vars(base))
    return names


def _refuse_train_on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedError(
        "model.train_on_batch is not distributed in this version, and would train on this machine alone. Use model.fit."
    )


def _flatten_callbacks(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return [c for c in callbacks.callbacks if not isinstance(c, (keras.callbacks.History, *_SHOWS_PROGRESS))]
    return keras.tree.flatten(callbacks) if callbacks else []


def _has_batch_hooks(callback: Any) -> bool:
    if isinstance(callback, (keras.callbacks.History, *_SHOWS_PROGRESS)):
        return False
    for idle_class, attribute in _IDLE_UNLESS.items():
        if type(callback) is idle_class and getattr(callback, attribute, None) == "epoch":
            return False
    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    hooks = [getattr(callback, name, None) for name in names]
    return any(hook is not None and not is_default(hook) for hook in hooks)


def _full_spec(array: np.ndarray) -> Any:
    return tensor_spec(tf.TensorSpec(array.shape, tf.dtypes.as_dtype(array.dtype), name="array"))


def _numbers(logs: Any) -> dict[str, float]:
    """Returns the scalars of the logs; a custom train_step may nest dicts."""
    numbers: dict[str, float] = {}
    for name, value in logs.items() if isinstance(logs, dict) else ():
        if isinstance(value, dict):
            numbers |= _numbers(value)
        elif np.ndim(value) == 0:
            numbers[str(name)] = float(value)
    return numbers
