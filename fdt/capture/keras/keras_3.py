"""Keras 3."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.trainers.compile_utils import CompileMetrics
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.trainer import model_supports_jit
from keras.src.utils.python_utils import is_default

from fdt.base.patch import Patches
from fdt.capture.keras.script_code import runs_script_code
from fdt.capture.keras.version import DataHooks, KerasVersion, Reader
from fdt.capture.rows import untuned
from fdt.capture.strategies import is_alone, made_under
from fdt.client.data import ArrayBatches, Batches, RowBatches, StreamedBatches, is_numbers


class Keras3(KerasVersion):
    """The package keras, on TensorFlow."""

    callbacks = keras.callbacks
    tree = keras.tree
    trainer = tf_trainer.TensorFlowTrainer

    def __init__(self) -> None:
        # Models of which the script leaves to Keras whether XLA compiles their steps.
        self._left_to_keras: WeakSet[Any] = WeakSet()

    def hook_fit(self, patches: Patches, fit: DataHooks) -> None:
        """See `KerasVersion`: replaces the epoch iterator by one that yields row numbers instead of data."""
        patches.set(tf_trainer, "TFEpochIterator", _epoch_iterator_class(fit))
        patches.wrap(self.trainer, "__init__", _remember_strategy)
        patches.wrap(self.trainer, "_maybe_symbolic_build", _build_by_rows)
        patches.wrap_inherited(self.trainer, "compile", self._note_choice)

    def _note_choice(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(model, *args, **kwargs)
        given = inspect.signature(original).bind(model, *args, **kwargs)
        given.apply_defaults()
        note = self._left_to_keras.add if given.arguments["jit_compile"] == "auto" else self._left_to_keras.discard
        note(model)
        return made

    def is_compiled_on_gpus(self, model: Any) -> bool:
        """See `KerasVersion`: where it is left to Keras, it compiles what it can, but nothing without a GPU."""
        chooses = model in self._left_to_keras and not model.run_eagerly and not model._distribute_strategy
        return bool(model.jit_compile) or (chooses and model_supports_jit(model))

    def is_default(self, hook: Any) -> bool:
        return bool(is_default(hook))

    def is_compiled(self, model: Any) -> bool:
        return bool(model.compiled)

    def strategy(self, model: Any) -> Any | None:
        strategy = model._distribute_strategy
        return None if is_alone(strategy) else strategy

    def has_own_step(self, model: Any) -> bool:
        return getattr(model.train_step, "__func__", None) is tf_trainer.TensorFlowTrainer.train_step

    def is_traced_once(self, model: Any) -> bool:
        """See `KerasVersion`: builds the optimizer, which scales a loss otherwise before it has variables."""
        layers, optimizer = list(model._flatten_layers()), model.optimizer
        if not self.has_own_step(model) or self.strategy(model) is not None or not all(each.built for each in layers):
            return False
        given = (optimizer, model._compile_loss, model._compile_metrics)
        objects = [*layers, *getattr(model, "operations", ()), *(each for each in given if each is not None)]
        if runs_script_code(objects):
            return False
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_weights)
        return True

    def trains_nothing(self, model: Any) -> bool:
        """See `KerasVersion`: only `compile` makes a new step; a model frozen between it and its first step trains nothing."""
        return bool(
            self.is_compiled(model) and model.built and self.has_own_step(model) and not model.trainable_weights
        )

    def converted(self, train_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns `train_step` itself: Keras 3 converts nothing by AutoGraph."""
        return train_step

    def step_in_place(self, model: Any) -> Any:
        """See `KerasVersion`: an enclosing function would draw other numbers, since seeds depend on places in the graph."""

        def step(data: Any) -> Any:
            return model.distribute_strategy.run(model.train_step, args=(data,))

        return tf.function(tf.autograph.experimental.do_not_convert(step), jit_compile=model.jit_compile)

    def compute_in_double(self) -> None:
        keras.config.set_floatx("float64")

    def averages_in_bar(self) -> bool:
        """Returns False: Keras 3 shows the last step's value."""
        return False

    def steps_per_execution(self, model: Any) -> int:
        return int(model.steps_per_execution)

    def metrics(self, model: Any) -> list[Any]:
        return [metric for metric in model.metrics if not isinstance(metric, CompileMetrics)]

    @contextlib.contextmanager
    def building_layers(self, model: Any, rows: int | None) -> Iterator[None]:
        """See `KerasVersion`: a model's summary shows these shapes."""
        layers = [layer for layer in model._flatten_layers() if not layer.built]
        yield
        for layer in layers if rows is not None else ():
            shapes = layer._build_shapes_dict or {}
            for name, shape in shapes.items():
                if isinstance(shape, tuple) and shape and shape[0] is None:
                    shapes[name] = (rows, *shape[1:])

    def counter(self, model: Any) -> tf.Variable | None:
        """Returns None: Keras 3 counts steps in its Python loop."""
        return None

    def counter_of(self, model: Any, function: str) -> tf.Variable | None:
        """Returns None, like `counter`."""
        return None

    def read_validation(self, model: Any, arguments: Mapping[str, Any]) -> None:
        data = arguments["validation_data"]
        if data is None:
            given = tuple(arguments[name] for name in ("x", "y", "sample_weight"))
            _, data = array_slicing.train_validation_split(given, validation_split=arguments["validation_split"])
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        tf_trainer.TFEpochIterator(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=arguments["validation_batch_size"] or arguments["batch_size"],
            distribute_strategy=model.distribute_strategy,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=arguments["validation_steps"],
            shuffle=False,
        )

    def read_validation_here(self, model: Any) -> None:
        model._eval_epoch_iterator._fdt_read_here()


def _remember_strategy(original: Callable[..., None], trainer: Any) -> None:
    """Sets the strategy that a model was made under: of a strategy with one replica, TensorFlow tells Keras nothing."""
    original(trainer)
    trainer._distribute_strategy = trainer._distribute_strategy or made_under()


def _build_by_rows(original: Callable[..., None], model: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Builds a model made under a strategy from a batch's rows; our iterator may yield only their numbers to Keras."""
    run = getattr(iterator, "_fdt_run", None)
    if model._distribute_strategy is not None and run is not None and isinstance(run.batches, RowBatches):
        _, _, steps = next(iter(iterator))
        rows = run.batches.encode(next(steps))
        iterator, data_batch = None, run.batches.element.decode([tf.constant(array) for array in rows])
    original(model, iterator, data_batch)


def _epoch_iterator_class(fit: DataHooks) -> type:
    class EpochIterator(tf_trainer.TFEpochIterator):  # type: ignore[misc]
        """Keras's epoch iterator; for the pool it reads from our adapter, and drains the job at the end of an epoch."""

        _fdt_run: Reader | None = None

        def __init__(self, *args: Any, **kwargs: Any):
            self._fdt_run = fit.awaiting_data()
            super().__init__(*args, **kwargs)
            if self._fdt_run is not None:
                self._fdt_run.steps_in_epoch = self.num_batches

        @property
        def data_adapter(self) -> Any:
            return self._fdt_adapter

        @data_adapter.setter
        def data_adapter(self, adapter: Any) -> None:
            self._fdt_adapter = adapter
            if self._fdt_run is not None:
                self._fdt_given = adapter
                self._fdt_run.batches, self._fdt_adapter = _batches(adapter, self._fdt_run, fit)
                if self._fdt_run.batches is None:
                    self._fdt_run = None

        def _fdt_read_here(self) -> None:
            if self._fdt_run is not None:
                self._fdt_run, self._fdt_adapter = None, self._fdt_given
                dataset = self._fdt_adapter.get_tf_dataset()
                self._distributed_dataset = self._distribute_strategy.experimental_distribute_dataset(dataset)

        @contextlib.contextmanager
        def catch_stop_iteration(self) -> Iterator[None]:
            with super().catch_stop_iteration():
                yield
            if self._fdt_run is not None:
                self._fdt_run.end_epoch()

    return EpochIterator


class _RowNumbers(ArrayDataAdapter):  # type: ignore[misc]
    def get_tf_dataset(self) -> tf.data.Dataset:
        return untuned(super().get_tf_dataset())


def _batches(adapter: Any, run: Reader, fit: DataHooks) -> tuple[Batches | None, Any]:
    """Returns the data that Keras's adapter holds, None if they stay Keras's, and the adapter that it is to iterate over."""
    structure = _dense_arrays(adapter) if isinstance(adapter, ArrayDataAdapter) else None
    batch_size = 0 if structure is None else adapter.batch_size * run.num_together
    batches = None if structure is None else ArrayBatches.cut_by_keras(structure, batch_size, keras.tree)
    if batches is not None and run.takes(batches):
        # The same adapter, given arange(n) in place of the arrays, shuffles the numbers exactly as it would the data.
        rows = np.arange(len(batches.arrays[0]), dtype=np.int64)
        return batches, _RowNumbers(rows, batch_size=batch_size, shuffle=adapter._shuffle)
    taken = fit.rows_of(adapter.get_tf_dataset()) if isinstance(adapter, TFDatasetAdapter) else None
    if taken is not None:
        return taken[0], TFDatasetAdapter(taken[1])
    run.check_streamed(type(adapter).__name__)
    return StreamedBatches(adapter.get_tf_dataset().element_spec, keras.tree) if run.streams else None, adapter


def _dense_arrays(adapter: ArrayDataAdapter) -> Any | None:
    """Returns the structure of the adapter's arrays; None if one of them is not an array of numbers."""
    sliceable = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    structure = keras.tree.lists_to_tuples(sliceable) if hasattr(keras.tree, "lists_to_tuples") else sliceable
    leaves: Sequence[Any] = keras.tree.flatten(structure)
    return structure if all(leaf is None or is_numbers(leaf) for leaf in leaves) else None
