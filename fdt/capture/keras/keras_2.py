"""Keras 2, the package tf_keras."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter
from tf_keras.src.engine.training import Model
from tf_keras.src.utils.generic_utils import is_default

from fdt.base.patch import Patches
from fdt.capture.keras import keras_2_step
from fdt.capture.keras.version import DataHooks, KerasVersion, Reader
from fdt.capture.rows import untuned
from fdt.capture.step.inlining import with_autograph
from fdt.client.data import ArrayBatches, StreamedBatches, is_numbers

# Keras 2's default batch size.
_BATCH_SIZE = 32


class Keras2(KerasVersion):
    """The package tf_keras."""

    callbacks = tf_keras.callbacks
    tree = tf.nest
    trainer = Model

    def hook_fit(self, patches: Patches, fit: DataHooks) -> None:
        self._data = _Data(fit)
        self._data.install(patches)
        keras_2_step.hook_metrics(patches)

    def is_default(self, hook: Any) -> bool:
        return bool(is_default(hook))

    def is_compiled(self, model: Any) -> bool:
        return bool(model._is_compiled)

    def strategy(self, model: Any) -> Any | None:
        strategy = model.distribute_strategy
        return None if strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy() else strategy

    def has_own_step(self, model: Any) -> bool:
        return getattr(model.train_step, "__func__", None) is Model.train_step

    def is_traced_once(self, model: Any) -> bool:
        """Returns False: layers draw seeds in Python as often as they are traced."""
        return False

    def is_compiled_on_gpus(self, model: Any) -> bool:
        """See `KerasVersion`: Keras 2 compiles if it is told to."""
        return bool(model.jit_compile)

    def trains_nothing(self, model: Any) -> bool:
        """Returns False: Keras 2 raises an error where there is nothing to train."""
        return False

    def converted(self, train_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Has AutoGraph convert a script's own train_step, and the layers that it calls."""
        return with_autograph(train_step)

    def step_in_place(self, model: Any) -> Any:
        return tf.function(self.converted(model.train_step), autograph=False)

    def compute_in_double(self) -> None:
        tf_keras.backend.set_floatx("float64")

    def averages_in_bar(self) -> bool:
        """Returns True: the bar averages what a train_step returns besides metrics."""
        return True

    def steps_per_execution(self, model: Any) -> int:
        return int(model._steps_per_execution.numpy())

    def metrics(self, model: Any) -> list[Any]:
        return list(model.metrics)

    def building_layers(self, model: Any, rows: int | None) -> contextlib.AbstractContextManager[None]:
        """Does nothing: Keras 2 shows no such shapes."""
        return contextlib.nullcontext()

    def counter(self, model: Any) -> tf.Variable | None:
        """Returns the counter of steps: callbacks read it, and steps may."""
        counter: tf.Variable = model._train_counter
        return counter

    def counter_of(self, model: Any, function: str) -> tf.Variable | None:
        counter: tf.Variable = model._test_counter if function == "test_function" else model._predict_counter
        return counter

    def read_validation(self, model: Any, arguments: Mapping[str, Any]) -> None:
        data = arguments["validation_data"]
        if data is None:
            given = tuple(arguments[name] for name in ("x", "y", "sample_weight"))
            _, data = data_adapter.train_validation_split(given, validation_split=arguments["validation_split"])
        x, y, sample_weight = data_adapter.unpack_x_y_sample_weight(data)
        data_adapter.get_data_handler(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=arguments["validation_batch_size"] or arguments["batch_size"],
            steps_per_epoch=arguments["validation_steps"],
            model=model,
            steps_per_execution=model._steps_per_execution,
        )

    def read_validation_here(self, model: Any) -> None:
        model._eval_data_handler = self._data.without_numbers(model._eval_data_handler)


class _Data:
    """Hooks the data handler of `fit`: where the training data are arrays, its iterator yields row numbers."""

    def __init__(self, fit: DataHooks):
        self._fit = fit
        # The run whose data are being read, if they may be sent as a whole.
        self._reading: Reader | None = None
        # What each data handler reads for, and how Keras makes it, as long as a `fit` uses the handler.
        self._runs: WeakKeyDictionary[Any, tuple[Reader, Callable[[], Any]]] = WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(data_adapter, "get_data_handler", self._get_data_handler)
        patches.wrap(data_adapter.TensorLikeDataAdapter, "slice_inputs", self._slice_inputs)
        patches.wrap(data_adapter.DataHandler, "catch_stop_iteration", self._catch_stop_iteration)

    def _get_data_handler(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = self._fit.awaiting_data()
        if run is None or args:
            return original(*args, **kwargs)
        if run.num_together > 1 and data_adapter.TensorLikeDataAdapter.can_handle(kwargs["x"], kwargs["y"]):
            kwargs["batch_size"] = (kwargs["batch_size"] or _BATCH_SIZE) * run.num_together
        given = dict(kwargs)
        # Class weights and shuffle="batch" are applied to what the iterator yields, so it must yield the data.
        if not kwargs.get("class_weight") and kwargs.get("shuffle") != "batch":
            self._reading = run
            taken = self._fit.rows_of(kwargs["x"]) if isinstance(kwargs["x"], tf.data.Dataset) else None
            if taken is not None:
                run.batches, kwargs["x"] = taken
        try:
            handler = original(**kwargs)
        finally:
            self._reading = None
        if run.batches is None:
            run.check_streamed(type(handler._adapter).__name__)
            if not run.streams:
                return handler
            run.batches = StreamedBatches(handler._dataset.element_spec, tf.nest)
        run.steps_in_epoch = handler.inferred_steps
        self._runs[handler] = run, lambda: original(**given)
        return handler

    def without_numbers(self, handler: Any) -> Any:
        """Returns a data handler that yields the data, in place of one that yields row numbers."""
        known = self._runs.get(handler)
        return handler if known is None else known[1]()

    def _slice_inputs(self, original: Callable[..., Any], adapter: Any, indices: Any, inputs: Any) -> Any:
        leaves = tf.nest.flatten(inputs)
        if self._reading is None or not all(map(is_numbers, leaves)):
            return original(adapter, indices, inputs)
        batches = ArrayBatches.cut_by_keras(inputs, adapter._batch_size, tf.nest)
        if not self._reading.takes(batches):
            return original(adapter, indices, inputs)
        self._reading.batches = batches
        # Keras shuffles and cuts the row numbers exactly as it would the data.
        return untuned(original(adapter, indices, tf.range(len(batches.arrays[0]), dtype=tf.int64)))

    @contextlib.contextmanager
    def _catch_stop_iteration(self, original: Callable[..., Any], handler: Any) -> Iterator[None]:
        with original(handler):
            yield
        known = self._runs.get(handler)
        if known is not None:
            known[0].end_epoch()
