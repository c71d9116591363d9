"""Runs the validations of one `fit`, or one `evaluate` or `predict` of the script's, on the pool; `test_function` or
`predict_function` calls it for each step.

The workers have the weights, so none travel: a test step is a program of the same job, which gets the training's variables by
a copy on the workers. Only metrics and predictions come home.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.evaluation_function import RemoteFunction
from fdt.capture.keras.evaluation_step import trace_step_of
from fdt.capture.keras.refreshing import Refreshing
from fdt.capture.keras.run import Run
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteStep, RemoteVariables
from fdt.capture.step.traced_step import TracedStep
from fdt.client.answers import Answer, StepResult
from fdt.client.data import ArrayBatches, ReadBatches, RowBatches
from fdt.client.job import Job
from fdt.errors import UnsupportedError
from fdt.program.element import Element


class Evaluation:
    """The validations of one `fit`, or one `evaluate`; see `fdt.capture.keras.version.Reader`.

    Attributes:
        model: The Keras model.
        what: What it is, for the opening line.
        function: The model's function that makes its steps.
        stays: Why they run on this machine; None if the pool makes them, as far as that is known.
    """

    num_together, sends_arrays, streams, why_streamed = 1, True, False, ""
    what, function = "validation", "test_function"

    def __init__(
        self,
        config: RunConfig,
        keras: KerasVersion,
        model: Any,
        arguments: Mapping[str, Any],
        training: Run | None = None,
    ):
        """
        Args:
            config: The run's configuration.
            keras: The model's generation of Keras.
            model: The Keras model.
            arguments: Those of `fit`, `evaluate` or `predict`.
            training: The training whose job makes the steps; None if they are only looked at.
        """
        self.admitted: Collection[str] | None = config.admitted
        self.is_elsewhere = config.is_elsewhere
        self.model = model
        self.stays: str | None = None
        self.batches: RowBatches | None = None
        self.steps_in_epoch: int | None = None
        self._config, self._keras, self._arguments, self._training = config, keras, arguments, training
        self._step: RemoteStep | None = None
        # The training's job and variables, while a validation runs.
        self._lent: tuple[Job, RemoteVariables] | None = None
        self._is_sent = False
        self._in_epoch = 0
        self._ran_out = False
        self._logs: Any = {}
        self._refreshing = Refreshing()

    def missing(self, batches: ReadBatches) -> str:
        return "" if self._training is None else self._training.missing(batches)

    def takes(self, batches: ArrayBatches) -> bool:
        return True

    def check_streamed(self, reader: str) -> None:
        """Leaves data that are not rows of arrays on this machine.

        Args:
            reader: Name of the Keras class that reads them.
        """
        why = self.why_streamed or f"Keras reads them through {reader}"
        self.stays = f"its data are not rows of arrays in an order ({why})"

    def num_batches(self, epoch: int) -> float:
        """Returns how many batches all validations together take.

        Args:
            epoch: Number of batches in one pass over the data.
        """
        given, steps = self._arguments, self._arguments["validation_steps"]
        every, epochs = given["validation_freq"], range(given["initial_epoch"] + 1, given["epochs"] + 1)
        validated = [e for e in epochs if (e % every == 0 if isinstance(every, int) else e in every)]
        return float(len(validated) * (epoch if steps is None else steps))

    def trace(self, function: RemoteFunction) -> bool:
        """Traces the step, the first time; returns whether the pool makes it.

        Args:
            function: The test function, which keeps the step.
        """
        if self.stays is None and self._training is not None:
            self.stays = self._training.lacks()
        if self.stays is None and self._step is None:
            assert self.batches is not None
            try:
                self._step = function.step(self.batches.element, self.batches.rows, self._traced)
            except UnsupportedError as error:
                self.stays = str(error)
        return self.stays is None

    def _traced(self, element: Element) -> TracedStep:
        assert self.batches is not None
        rows = self.batches.rows
        with self._keras.building_layers(self.model, rows):
            return trace_step_of(self.function, self._config, self._keras, self.model, element, rows)

    def shows_each_batch(self) -> bool:
        """Whether a progress bar shows the numbers of each batch."""
        return False

    def line(self) -> str:
        """Returns the opening line."""
        assert self.batches is not None
        return f"{self.what} runs on the workers, on {self.batches.num_rows:,} rows {self.batches.way}"

    @contextlib.contextmanager
    def running(self, run: Run, function: RemoteFunction) -> Iterator[None]:
        """Makes the steps of one validation, which a test function is called for within the context.

        Args:
            run: The training, between two epochs.
            function: The test function.
        """
        assert self.batches is not None
        self._in_epoch, self._ran_out, self._logs = 0, False, {}
        with run.lending() as self._lent:
            if not self._is_sent:
                self.batches.begin(self._lent[0])
                self._is_sent = True
            function.on_pool = self.run_step
            try:
                yield
            finally:
                function.on_pool = None

    def run_step(self, iterator: Any) -> Any:
        """Replaces one call of Keras's test_function."""
        assert self._lent is not None and self._step is not None
        _, variables = self._lent
        items = list(itertools.islice(iterator, self._keras.steps_per_execution(self.model)))
        if not items:
            self._ran_out = True
            raise StopIteration
        with self._told(), variables.busy():
            if not self._in_epoch:
                self._logs = self._step.traced.placeholder()
            self._send(items)
            if self.shows_each_batch():
                self._show_newest(len(items))
        return self._logs

    def _send(self, items: Sequence[Any], results: bool = False) -> list[StepResult | None]:
        """Sends steps; returns their outputs, if they are wanted."""
        assert self._lent is not None and self._step is not None and self.batches is not None
        job, variables = self._lent
        variables.enter(job, self._step)
        sent = [self.batches.run(job, self._step.program, item, results) for item in items]
        self._in_epoch += len(items)
        counter = self._keras.counter_of(self.model, self.function)
        if counter is not None:
            counter.assign_add(len(items))
        variables.ran(self._step)
        return sent

    def _show_newest(self, steps: int) -> None:
        """Gives the progress bar the newest numbers; waits for them only in the first and last step, as in training."""
        assert self._lent is not None and self._step is not None
        if self._in_epoch in (steps, self.steps_in_epoch):
            self._logs = self._pull()
        else:
            self._refreshing.refresh(self._step, self._lent[0], steps, self._show)

    def _show(self, answer: Answer) -> None:
        assert self._step is not None
        self._logs = self._step.traced.logs(answer.outputs)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raises a step's error as TensorFlow's, with all values as they were before that step."""
        assert self._lent is not None
        try:
            with self._lent[1].told():
                yield
        except tf.errors.OpError:
            self._refreshing.settle()
            raise

    def _pull(self) -> Any:
        """Waits for the steps so far, and fetches the metrics; returns the logs."""
        assert self._lent is not None and self._step is not None
        job, variables = self._lent
        return self._step.traced.logs(variables.metrics_of(job, self._step).outputs)

    def end_epoch(self) -> None:
        """Waits for the steps of a validation, and stores the metrics in the script's own objects."""
        assert self._step is not None
        if self._in_epoch:
            assert self._lent is not None
            with self._told(), self._lent[1].busy():
                self._refreshing.settle()
                logs = self._pull()
            # Keras may keep the dict it was given last: it has to see the final numbers.
            if isinstance(logs, dict) and isinstance(self._logs, dict):
                self._logs.update(logs)
        if self._ran_out and self._keras.steps_per_execution(self.model) == 1 and not self.model.jit_compile:
            assert self.batches is not None
            self._step.traced.run_out(self.batches.element.specs_of_rows(self.batches.rows))
        self._in_epoch, self._ran_out = 0, False

    def returned(self, result: Any) -> Any:
        """Returns what the script gets for what Keras's method returned."""
        return result


class ScriptedEvaluation(Evaluation):
    """One `evaluate` that the script calls: on the pool if its data are files that the workers read, or arrays that they have.

    Other data are in this process, or made by it: to send them all for one pass over them seldom pays.
    """

    sends_arrays, what = False, "evaluate"

    def takes(self, batches: ArrayBatches) -> bool:
        """See `Reader`: if a validation has sent these arrays, and made such steps."""
        made = getattr(self.model, self.function, None)
        if self._training is None or not isinstance(made, RemoteFunction):
            return False
        return made.known(batches.element, batches.rows) is not None and self._training.has(batches)

    def shows_each_batch(self) -> bool:
        return self._arguments["verbose"] not in (0, 2)

    def line(self) -> str:
        if isinstance(self.batches, ArrayBatches):
            return f"{self.what} runs on the workers, on {self.batches.num_rows:,} rows that they have"
        return super().line()


class Prediction(ScriptedEvaluation):
    """One `predict` that the script calls, on the pool under the same condition."""

    what, function = "predict", "predict_function"

    def run_step(self, data: Any) -> Any:
        """Replaces one call of Keras's predict_function; returns what the workers still have to compute."""
        assert self._lent is not None and self._step is not None
        traced, variables = self._step.traced, self._lent[1]
        # Keras 3 has taken the batches from the iterator.
        items = data if isinstance(data, list) else itertools.islice(data, self._keras.steps_per_execution(self.model))
        if not (items := list(items)):
            raise StopIteration
        with variables.told(), variables.busy():
            results = self._send(items, results=True)

        @functools.cache
        def leaves() -> list[tf.Tensor]:
            with variables.told():
                steps = [tf.nest.flatten(traced.logs(result.outputs())) for result in results if result is not None]
            # Their bytes are not needed besides.
            results.clear()
            return [parts[0] if len(parts) == 1 else tf.concat(parts, 0) for parts in zip(*steps, strict=True)]

        structure = traced.placeholder()
        awaited = [Predicted(leaves, place) for place in range(len(tf.nest.flatten(structure)))]
        return tf.nest.pack_sequence_as(structure, awaited)

    def end_epoch(self) -> None:
        """Does nothing: Keras waits for each batch's outputs when it puts them together."""

    def returned(self, result: Any) -> Any:
        """See `Evaluation`: of a single batch Keras returns the outputs as they came."""
        return tf.nest.map_structure(lambda leaf: leaf.numpy() if isinstance(leaf, Predicted) else leaf, result)


class Predicted:
    """One output of `predict` for a batch, which the workers may still have to compute.

    No tensor on purpose: Keras makes arrays of tensors that it hands to callbacks, and would wait for each batch.
    """

    def __init__(self, leaves: Callable[[], Sequence[tf.Tensor]], place: int) -> None:
        """
        Args:
            leaves: Waits for all outputs.
            place: Which of them it is.
        """
        self._leaves, self._place = leaves, place

    def numpy(self) -> np.ndarray:
        """Waits for the output."""
        return np.asarray(self._leaves()[self._place])

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        """Waits for the output."""
        return self._leaves()[self._place].__tf_tensor__(dtype, name)
