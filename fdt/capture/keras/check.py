"""Runs `fit` and `train_on_batch` up to the first step: checks everything, trains nothing."""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fdt.base.config import RunConfig
from fdt.capture.inspection import Inspection, SeenStep
from fdt.capture.keras.callbacks import write_files
from fdt.capture.keras.evaluation import Evaluation
from fdt.capture.keras.evaluation_function import RemoteFunction
from fdt.capture.keras.hooks import KerasHooks, check_model
from fdt.capture.keras.on_batch import batches_like
from fdt.capture.keras.opening import lacking, opening_lines
from fdt.capture.keras.traced_run import TracedRun
from fdt.capture.keras.train_function import RemoteTrainFunction
from fdt.capture.keras.validation import line_here, stays_here, validates
from fdt.capture.keras.version import KerasVersion, Reader
from fdt.capture.refusals import where
from fdt.capture.step.divided import divided_lines, divided_variables
from fdt.capture.step.traced_step import TracedStep
from fdt.client.data import RowBatches
from fdt.client.findings import Finding
from fdt.errors import FdtError
from fdt.program import admission
from fdt.program.step_program import dtype_of
from fdt.v1 import program_pb2


def figure(step: int) -> float:
    """Returns a placeholder for a metric of a training that does not run: it falls with `step`, and is never 0 or NaN.

    Args:
        step: Number of the step or epoch, from 1.
    """
    return 1.0 / step


class CheckedError(BaseException):
    """Ends `fit` where its first step would begin. A BaseException, so that no script catches it by accident."""


class KerasCheck(KerasHooks["CheckedRun"]):
    """See `fdt.capture.keras.hooks.KerasHooks`."""

    def __init__(self, inspection: Inspection, keras: KerasVersion):
        """
        Args:
            inspection: Takes the steps.
            keras: The generation of Keras.
        """
        super().__init__(keras)
        self._inspection, self._config, self._findings = inspection, inspection.config, inspection.findings
        self._num_on_batch = 0
        # The validations whose data are being read.
        self._evaluation: Evaluation | None = None

    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(original).bind(model, *args, **kwargs)
        arguments.apply_defaults()
        self._arguments = arguments.arguments
        if self._trains_nothing(model):
            return self._run_here("fit", original, model, *args, **kwargs)
        run = self._run = CheckedRun(self._config, self._keras, model, self._inspection.needs_batch)
        try:
            check_model(self._keras, model)
            run.listen(arguments.arguments)
            with contextlib.suppress(CheckedError):
                original(*arguments.args, **arguments.kwargs)
            if run.traced is not None and validates(arguments.arguments):
                run.validation = self._place_of_validation(run.traced, model, arguments.arguments)
        except FdtError as error:
            self._refuse(f"{type(model).__name__}.fit", error)
        finally:
            self._run = None
        if run.traced is not None:
            self._looked(run, f"{type(model).__name__}.fit")
        history = _history(self._keras, model, run.traced, arguments.arguments)
        write_files(self._keras, model, arguments.arguments, history.history)
        return history

    def awaiting_data(self) -> Reader | None:
        evaluation = self._evaluation
        return super().awaiting_data() if evaluation is None or evaluation.batches is not None else evaluation

    def _num_batches(self, epoch: int) -> float:
        return super()._num_batches(epoch) if self._evaluation is None else self._evaluation.num_batches(epoch)

    def _place_of_validation(self, trained: TracedStep, model: Any, arguments: dict[str, Any]) -> str:
        """Returns where a `fit` would validate, and why."""
        stays = lacking(self._config, trained) or stays_here(self._keras, model, arguments)
        if stays is not None:
            return line_here(stays)
        self._evaluation = evaluation = Evaluation(self._config, self._keras, model, arguments)
        try:
            self._keras.read_validation(model, arguments)
            function = RemoteFunction(model, evaluation.function, lambda *_: None)
            return evaluation.line() if evaluation.trace(function) else line_here(evaluation.stays)
        finally:
            self._evaluation = None

    def _train_on_batch(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._trains_nothing(model):
            return self._run_here("train_on_batch", original, model, *args, **kwargs)
        what = f"{type(model).__name__}.train_on_batch"
        run = self._run = CheckedRun(self._config, self._keras, model, self._inspection.needs_batch)
        self._num_on_batch += 1
        run.on_batch = self._num_on_batch
        try:
            check_model(self._keras, model)
            result = original(model, *args, **kwargs)
        except FdtError as error:
            self._refuse(what, error)
            raise
        finally:
            self._run = None
        self._looked(run, what)
        return result

    def _say_here(self, what: str) -> None:
        lines = ("the model has no trainable weights, so nothing is trained",)
        self._findings.add(Finding(where(), what, lines, trains=False))

    def _looked(self, run: "CheckedRun", what: str) -> None:
        """Hands on a training that could be distributed."""
        assert run.traced is not None
        self._inspection.add(SeenStep(where(), what, run.traced, run.describe, run.batch, run.num_steps()))

    def _refuse(self, what: str, error: FdtError) -> None:
        self._findings.refuse(where(), what, str(error))


class CheckedRun(TracedRun):
    """A training that ends where its first step would begin."""

    def __init__(self, config: RunConfig, keras: KerasVersion, model: Any, needs_batch: bool):
        """
        Args:
            config: The run's configuration.
            keras: The model's generation of Keras.
            model: The Keras model.
            needs_batch: Whether its first batch is read even if shapes are known without it.
        """
        super().__init__(config, keras, model)
        self.admitted = config.admitted
        self.traced: TracedStep | None = None
        # Shapes of a batch's arrays.
        self.shapes: list[tuple[int, ...]] = []
        # Which call of `train_on_batch` this is, from 1; 0 for a `fit`.
        self.on_batch = 0
        # Where a `fit` would validate; None if it would not.
        self.validation: str | None = None
        self._needs_batch = needs_batch
        self._arrays: list[np.ndarray] = []
        # One for `train_on_batch`.
        self._epochs_to_come = 1
        self._listener: Any = None

    def listen(self, arguments: dict[str, Any]) -> None:
        """Adds a callback to a `fit` whose first batch is read; Keras tells it how many steps an epoch has.

        Args:
            arguments: Those of `fit`.
        """
        self._epochs_to_come = arguments["epochs"] - arguments["initial_epoch"]
        self._listener = self.keras.callbacks.Callback()
        callbacks = arguments["callbacks"]
        if not self._needs_batch or isinstance(callbacks, self.keras.callbacks.CallbackList):
            return
        given = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] * (callbacks is not None)
        arguments["callbacks"] = [*given, self._listener]

    def num_steps(self) -> int | None:
        """Returns how many steps the training would make; None if its data do not tell."""
        if self._listener is None:
            return 1
        an_epoch = (self._listener.params or {}).get("steps")
        return None if an_epoch is None else int(an_epoch) * self._epochs_to_come

    def batch(self) -> list[np.ndarray]:
        """Returns the first batch, [rows, ...] each; it was read."""
        assert self._arrays
        return self._arrays

    def prepare(self, force: bool) -> None:
        """Traces the step of a `fit`, then ends the `fit` unless its first batch is needed for the shapes."""
        if force or not isinstance(self.model.train_function, RemoteTrainFunction):
            self.model.train_function = RemoteTrainFunction()
        self.model.train_function.run = self
        if self.on_batch:
            return
        self.look()
        # Shapes of arrays are known before one is read.
        if isinstance(self.batches, RowBatches) and not self._needs_batch:
            raise CheckedError

    def run_step(self, iterator: Any) -> Any:
        """Reads the batch and ends the `fit`; in `train_on_batch` traces the step and returns placeholder figures."""
        item = next(iter(iterator))
        if not self.on_batch:
            self.take(item)
            raise CheckedError
        self.batches, item = batches_like(self.keras, item)
        if not self.batches.takes(item):
            self.batches.element = self.batches.element.in_groups()
        self.look()
        self.take(item)
        assert self.traced is not None
        return self.keras.tree.map_structure(lambda _: figure(self.on_batch), self.traced.placeholder())

    def take(self, item: Any) -> None:
        """Keeps the first batch that Keras's iterator yields."""
        assert self.batches is not None
        self._arrays = self.batches.encode(item)
        self.shapes = [array.shape for array in self._arrays]

    def end_epoch(self) -> None:
        """Nothing to do: nothing was trained."""

    def look(self) -> None:
        """Traces the step and asks whether a pool would admit it."""
        assert self.batches is not None
        # Traced again only after `compile`, as in Keras; freezing a layer does not retrace the step.
        traced = self.model.train_function.step(self.batches.element, self._trace).traced
        admission.admit(traced.program, self._config.admitted)
        if self._config.mode == "sync":
            # Refuses what does not fit into memory.
            divided_variables(self._config, traced)
        self.traced = traced
        if isinstance(self.batches, RowBatches):
            self.shapes = self.batches.shapes

    def describe(self) -> list[str]:
        """Returns lines that describe the training."""
        assert self.batches is not None and self.traced is not None
        lines = opening_lines(self._config, self.batches.batch_size, self.traced)
        lines.append(self.place_of_data())
        lines += step_lines(self._config, self.traced, self.shapes)
        if self.validation is not None:
            lines.append(self.validation)
        lines.append("stays here: callbacks, evaluate and predict on data that workers do not read from files")
        return lines


def step_lines(config: RunConfig, traced: TracedStep, shapes: Sequence[Sequence[int]]) -> list[str]:
    """Returns lines on how a synchronous step is divided, or what asynchronous workers exchange."""
    if config.mode == "sync":
        return divided_lines(traced, shapes, config) if config.num_workers > 1 else []
    holes, variables = traced.program.holes, traced.program.variables
    sent = sum(_num_bytes(variables[gradient.variable].tensor) for hole in holes for gradient in hole.gradients)
    sparse = any(gradient.sparse for hole in holes for gradient in hole.gradients)
    beside = ", tables' as the rows that a batch uses" if sparse else ""
    return [f"exchanged in each step: gradients of {sent / 1e6:.2f} MB{beside}"]


def _num_bytes(tensor: program_pb2.Tensor) -> int:
    size = dtype_of(tensor).itemsize
    for length in tensor.shape:
        size *= length
    return size


def _history(keras: KerasVersion, model: Any, traced: TracedStep | None, arguments: dict[str, Any]) -> Any:
    """Returns a History with the keys that the training would give it, and placeholder figures."""
    history = keras.callbacks.History()
    history.set_model(model)
    history.on_train_begin()
    logs = traced.placeholder() if traced is not None else {}
    names = list(logs) if isinstance(logs, dict) else []
    if arguments["validation_data"] is not None or arguments["validation_split"]:
        names += [f"val_{name}" for name in names]
    epochs = range(arguments["initial_epoch"], arguments["epochs"])
    history.epoch = list(epochs)
    history.history = {name: [figure(epoch + 1) for epoch in epochs] for name in names}
    model.history = history
    return history
