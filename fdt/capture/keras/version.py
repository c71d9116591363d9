"""The interface of a generation of Keras: what capture uses and the generations do differently."""

import contextlib
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, Protocol

import tensorflow as tf

from fdt.base.patch import Patches


class Reader(Protocol):
    """What reads data in Keras's place: a training, or the validations of a `fit`.

    Attributes:
        batches: The data, once Keras has read its arguments.
        steps_in_epoch: Steps in one pass; None if Keras does not know.
        sends_arrays: Whether rows that a data set makes of arrays are computed and sent as a whole.
        streams: Whether other data are sent batch by batch; otherwise they are Keras's.
        num_together: How many of the script's batches are sent as one batch.
        admitted: Operations that functions of rows may hold besides the usual ones; None if the workers read no files.
        is_elsewhere: Whether the workers are on other machines.
        why_streamed: Why data are neither arrays nor rows of files; "" if that is not known.
    """

    def missing(self, batches: Any) -> str:
        """Returns which file of data that are read from files those who make the steps cannot read, and why; "" if they can.

        Args:
            batches: `fdt.client.data.ReadBatches`.
        """

    def takes(self, batches: Any) -> bool:
        """Returns whether arrays go to the workers, or are there.

        Args:
            batches: `fdt.client.data.ArrayBatches`.
        """

    batches: Any
    steps_in_epoch: int | None
    sends_arrays: bool
    streams: bool
    admitted: Collection[str] | None
    is_elsewhere: bool
    why_streamed: str

    @property
    def num_together(self) -> int:
        """See the class."""

    def check_streamed(self, reader: str) -> None:
        """Called before data are streamed, with the name of the Keras class that reads them."""

    def end_epoch(self) -> None:
        """Runs after the last step of a pass over the data."""


class DataHooks(Protocol):
    """What Keras's data classes ask when `fit` is about to read its training or validation data."""

    def awaiting_data(self) -> Reader | None:
        """Returns for what Keras is about to read data; None if that is neither training nor validation on the pool."""

    def rows_of(self, dataset: Any) -> tuple[Any, Any] | None:
        """Returns a data set as `fdt.client.data.RowBatches` and a data set of row numbers; None if it is to be streamed."""


class KerasVersion(Protocol):
    """One generation of Keras.

    Attributes:
        callbacks: Its module of callbacks.
        tree: Its functions on nested structures: `flatten`, `map_structure`, `pack_sequence_as`.
        trainer: The class that defines `fit`.
    """

    callbacks: ModuleType
    tree: Any
    trainer: type

    def hook_fit(self, patches: Patches, fit: DataHooks) -> None:
        """Hooks `fit`: it hands over its data, and waits at the end of each epoch."""

    def is_default(self, hook: Any) -> bool:
        """Returns whether a callback's hook is the empty one of its base class."""

    def is_compiled(self, model: Any) -> bool:
        """Returns whether `compile` was called."""

    def strategy(self, model: Any) -> Any | None:
        """Returns the distribution strategy that a model was built under; None if there was none."""

    def has_own_step(self, model: Any) -> bool:
        """Returns whether a model trains with Keras's own train_step."""

    def is_traced_once(self, model: Any) -> bool:
        """Makes a model ready for a single trace of its step; returns False if that would not be what the second of two is.

        It is where no Python of the script's runs in it, and the step does not depend on whether its variables are there.
        """

    def is_compiled_on_gpus(self, model: Any) -> bool:
        """Returns whether a model's step is compiled by XLA on a machine with GPUs, which this one may lack."""

    def trains_nothing(self, model: Any) -> bool:
        """Returns whether a model has Keras's own step, with nothing to train, and Keras raises no error."""

    def converted(self, train_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a train_step as this Keras would trace it."""

    def step_in_place(self, model: Any) -> Any:
        """Returns a tf.function of one batch that makes a step on this machine, as this Keras traces it for its own `fit`."""

    def compute_in_double(self) -> None:
        """Makes double precision the default of all that is built from now on."""

    def averages_in_bar(self) -> bool:
        """Returns whether the progress bar averages values that are no metrics over the steps of an epoch that it is given."""

    def steps_per_execution(self, model: Any) -> int:
        """Returns how many steps one call of the train function makes."""

    def metrics(self, model: Any) -> list[Any]:
        """Returns a model's metrics, without containers of metrics."""

    def building_layers(self, model: Any, rows: int | None) -> contextlib.AbstractContextManager[None]:
        """Gives layers that are built in a trace for any number of rows the shapes that plain Keras would have given them.

        Args:
            model: The model.
            rows: Rows of every batch; None if they differ.
        """

    def counter(self, model: Any) -> tf.Variable | None:
        """Returns the variable in which Keras's train function counts steps outside train_step; None if there is none."""

    def counter_of(self, model: Any, function: str) -> tf.Variable | None:
        """Returns the variable in which Keras counts the steps of a function, outside of them; None if there is none.

        Args:
            model: The model.
            function: "test_function" or "predict_function".
        """

    def read_validation(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Has Keras read a `fit`'s validation data, as the `fit` would.

        Args:
            model: The model.
            arguments: Those of `fit`.
        """

    def read_validation_here(self, model: Any) -> None:
        """Makes a running `fit` validate on its data: its reader has had Keras read row numbers in their place."""
