"""Traces the step of one training of a Keras model; subclasses train, check, sample or verify it."""

import abc
import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.opening import stateful
from fdt.capture.keras.train_step import trace_train_step
from fdt.capture.keras.version import KerasVersion
from fdt.capture.refusals import where_raised
from fdt.capture.step.traced_step import TracedStep, refuse_moved
from fdt.capture.watching import Watch
from fdt.client.data import ArrayBatches, Batches, ReadBatches, RowBatches
from fdt.errors import UnsupportedError
from fdt.program.element import Element

_WARM_UP_EPOCHS = 5


class TracedRun(abc.ABC):
    """One call of `fit`, or the calls of `train_on_batch` of one model.

    Attributes:
        model: The Keras model.
        keras: The model's generation of Keras.
        batches: The training data, once Keras has read its arguments.
        steps_in_epoch: Steps in an epoch; None if Keras does not know.
        sends_arrays, streams, num_together, admitted, is_elsewhere, why_streamed: See `fdt.capture.keras.version.Reader`.
    """

    sends_arrays = streams = True
    admitted: Collection[str] | None = None
    why_streamed = ""

    def __init__(self, config: RunConfig, keras: KerasVersion, model: Any):
        self.model, self.keras = model, keras
        self.batches: Batches | None = None
        self.steps_in_epoch: int | None = None
        self._config, self.is_elsewhere = config, config.is_elsewhere

    @abc.abstractmethod
    def prepare(self, force: bool) -> None:
        """Replaces Keras's make_train_function.

        Args:
            force: Whether to replace an existing train function.
        """

    @abc.abstractmethod
    def run_step(self, iterator: Any) -> Any:
        """Replaces one call of Keras's train_function; returns the newest logs."""

    @abc.abstractmethod
    def end_epoch(self) -> None:
        """Runs after the last step of an epoch."""

    @property
    def num_together(self) -> int:
        """See the class."""
        return self._config.num_workers if self._config.batch == "per-worker" else 1

    def missing(self, batches: ReadBatches) -> str:
        """Returns "": no worker reads files, because no steps are made."""
        return ""

    def takes(self, batches: ArrayBatches) -> bool:
        return self.sends_arrays

    def check_streamed(self, reader: str) -> None:
        """Refuses data that have to be streamed if `--batch per-worker` needs arrays.

        Args:
            reader: Name of the Keras class that reads them.
        """
        if self.num_together > 1:
            raise UnsupportedError(
                f"--batch per-worker needs data in arrays of numbers; model.fit was given data that Keras reads through "
                f"{reader}. Leave the option out, and give the data set the larger batch."
            )
        if self.sends_arrays:
            self.why_streamed = self.why_streamed or f"Keras reads them through {reader}"

    def place_of_data(self) -> str:
        """Returns where the data are read, and why."""
        if isinstance(self.batches, RowBatches):
            return f"data: {self.batches.place()}"
        why = f" ({self.why_streamed})" if self.why_streamed else ""
        return f"data: streamed, batch by batch, as the script makes them{why}"

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
        assert self.batches is not None
        factor, rows = self._learning_rate_factor(), self.batches.rows
        with self.keras.building_layers(self.model, rows), self._watched() as watch:
            traced = trace_train_step(self._config, self.keras, self.model, element, factor, rows)
        traced.watch = watch
        traced.program.computation.compiled = bool(self.model.jit_compile)
        traced.program.computation.compiled_on_gpus = self.keras.is_compiled_on_gpus(self.model)
        traced.is_any_size = rows is None
        if self._config.pulls_parameters:
            refuse_moved(traced)
        return traced

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Watch | None]:
        """Watches the trace of an eager step, and refuses Python side effects, which a traced step would not repeat."""
        if not self.model.run_eagerly:
            yield None
            return
        watch = Watch()
        with watch.watching():
            try:
                yield watch
            except (AttributeError, NotImplementedError, TypeError) as error:
                # Errors that TensorFlow and Python raise for a symbolic tensor, and a word of their messages.
                if "symbolic" not in str(error).lower():
                    raise
                raise UnsupportedError(
                    f"{where_raised(error)}: the model is compiled with run_eagerly=True, and its step looks at values of "
                    f"tensors in Python, which the script's machine does not have ({error}). Compile it with "
                    "run_eagerly=False and decide by operations (tf.where, tf.cond); print by tf.print, or look at losses and "
                    "metrics in a callback."
                ) from None
        if effect := next(iter(watch.effects), watch.take_back_draws()):
            raise UnsupportedError(
                f"The model is compiled with run_eagerly=True, and its step does in Python what would be done once only: "
                f"{effect}. Compile it with run_eagerly=False, and do that in a callback."
            )

    def _learning_rate_factor(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        num_workers, rule = self._config.num_workers, self._config.scale_lr
        if self.num_together == 1 or rule == "none":
            return None
        assert isinstance(self.batches, RowBatches)
        target = float(num_workers) if rule == "linear" else num_workers**0.5
        return warm_up(target, _WARM_UP_EPOCHS * self.batches.num_batches)


def warm_up(target: float, num_steps: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the learning rate's factor: from 1 to `target` in `num_steps` steps, then `target` (Goyal et al. 2017)."""

    def factor(iterations: tf.Tensor) -> tf.Tensor:
        progress = tf.minimum(1.0, tf.cast(iterations, tf.float32) / float(max(1, num_steps)))
        return 1.0 + (target - 1.0) * progress

    return factor
