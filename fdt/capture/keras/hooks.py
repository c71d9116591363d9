"""Hooks Keras's `fit` and `train_on_batch`; a subclass decides what runs in their place."""

import abc
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import _FrequentTracingDetectorManager

from fdt.base.patch import Patches
from fdt.capture.keras.traced_run import TracedRun
from fdt.capture.keras.train_function import RemoteTrainFunction
from fdt.capture.keras.version import KerasVersion, Reader
from fdt.capture.rows import RowNumbers
from fdt.client.data import ArrayBatches, ReadBatches, RowBatches
from fdt.client.report import say
from fdt.errors import UnsupportedError

RunT = TypeVar("RunT", bound=TracedRun)


class KerasHooks(abc.ABC, Generic[RunT]):
    """Replaces `fit`, `train_on_batch` and `make_train_function`."""

    def __init__(self, keras: KerasVersion):
        self._keras = keras
        self._run: RunT | None = None
        # Arguments of the running `fit`.
        self._arguments: dict[str, Any] = {}
        # The model whose call runs on this machine because it trains nothing, and the calls for which that was said.
        self._here: Any = None
        self._said: set[str] = set()

    def install(self, patches: Patches, row_numbers: RowNumbers) -> None:
        """Puts the hooks in place.

        Args:
            patches: Receives the hooks.
            row_numbers: Installed before the script makes its first data set.
        """
        self._row_numbers = row_numbers
        patches.wrap(self._keras.trainer, "fit", self._fit)
        patches.wrap(self._keras.trainer, "make_train_function", self._make_train_function)
        patches.wrap(self._keras.trainer, "train_on_batch", self._train_on_batch)
        self._keras.hook_fit(patches, self)
        patches.wrap(_FrequentTracingDetectorManager, "called_with_tracing", self._trace_noted)

    def _trace_noted(self, original: Callable[..., None], counts: Any, key: Any, name: str, omit_warning: bool) -> None:
        """Has TensorFlow not warn that Keras's own functions are traced in many of their calls: it does not see the pool's."""
        is_keras_own = getattr(key, "co_filename", None) == inspect.getfile(self._keras.trainer)
        original(counts, key, name, omit_warning or is_keras_own)

    def awaiting_data(self) -> Reader | None:
        return self._run if self._run is not None and self._run.batches is None else None

    def rows_of(self, dataset: Any) -> tuple[RowBatches, Any] | None:
        run, tree = self.awaiting_data(), self._keras.tree
        # To make one batch of several (--batch per-worker), one has to know how the data set continues.
        if run is None or run.num_together > 1:
            return None
        rows = self._row_numbers.of_files(dataset, run.admitted, run.is_elsewhere) if run.admitted is not None else None
        if rows is not None and rows.files is not None:
            batches = ReadBatches(rows.files, rows.structure, rows.batch_size, tree, rows.rows_told)
            missing = run.missing(batches)
            if not missing:
                return batches, rows.numbers
            self._row_numbers.reason = f"its files are read on this machine: {missing}"
            if missing not in self._said:
                self._said.add(missing)
                say(f"data: their files are read on this machine: {missing}")
        if not run.sends_arrays:
            return None
        rows = self._row_numbers.of(dataset, self._num_batches)
        if rows is None:
            run.why_streamed = self._row_numbers.reason
            return None
        return ArrayBatches(rows.structure, rows.batch_size, tree, rows.rows_told), rows.numbers

    def _num_batches(self, epoch: int) -> float:
        """Returns how many batches the `fit` will take of the data that Keras is about to read.

        Args:
            epoch: Number of batches in one pass over them.
        """
        epochs, steps = self._arguments["epochs"] - self._arguments["initial_epoch"], self._arguments["steps_per_epoch"]
        return float(epochs * (epoch if steps is None else steps))

    @abc.abstractmethod
    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def _train_on_batch(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def _say_here(self, what: str) -> None:
        """Says that a model trains nothing.

        Args:
            what: The call and the model.
        """

    def _trains_nothing(self, model: Any) -> bool:
        """Whether a model's steps update no weight; Keras's train function, once made, stays until the model is compiled."""
        made = getattr(model, "train_function", None)
        return self._keras.trains_nothing(model) if made is None else not isinstance(made, RemoteTrainFunction)

    def _run_here(self, called: str, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        what = f"{type(model).__name__}.{called} of {model.name!r}"
        if what not in self._said:
            self._said.add(what)
            self._say_here(what)
        outer, self._here = self._here, model
        try:
            return original(model, *args, **kwargs)
        finally:
            self._here = outer

    def _make_train_function(self, original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        if self._here is model:
            return original(model, force)
        if self._run is None or self._run.model is not model:
            raise UnsupportedError(
                "make_train_function was called outside model.fit; a train_function made here would train on this "
                "machine alone. Call model.fit instead."
            )
        self._run.prepare(force)
        return model.train_function


def check_model(keras: KerasVersion, model: Any) -> None:
    """Refuses a model whose step cannot be captured.

    Raises:
        UnsupportedError: The model runs eagerly, is distributed already, or overrides Keras's train function.
    """
    if not keras.is_compiled(model):
        return  # Keras itself says so.
    if tf.config.functions_run_eagerly():
        raise UnsupportedError(
            "tf.config.run_functions_eagerly is on: no function can be captured. Turn it off; a model may be compiled with "
            "run_eagerly=True."
        )
    strategy = keras.strategy(model)
    if strategy is not None:
        raise UnsupportedError(
            f"The model was built under {type(strategy).__name__}. Two ways of distributing cannot be "
            "combined: build the model without a strategy scope."
        )
    for name in ("make_train_function", "train_function"):
        if name in own_attributes(keras, type(model)):
            raise UnsupportedError(
                f"{type(model).__name__} overrides {name}, which replaces the step that is distributed. Put the step into "
                "train_step(self, data)."
            )


def own_attributes(keras: KerasVersion, model_class: type) -> set[str]:
    """Returns the names that a model's class defines itself, or inherits from classes that are not Keras's."""
    names: set[str] = set()
    for base in model_class.__mro__:
        if base is keras.trainer:
            break
        if not base.__module__.startswith("keras."):
            names |= set(vars(base))
    return names
