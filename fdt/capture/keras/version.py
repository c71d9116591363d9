"""The interface of a generation of Keras: what capture uses and the generations do differently."""

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import tensorflow as tf

from fdt.base.patch import Patches


class DataHooks(Protocol):
    """What Keras's data classes ask when `fit` is about to read its training data."""

    def awaiting_data(self) -> Any | None:
        """Returns the run whose training data Keras is about to read; None if it reads for something else."""

    def rows_of(self, dataset: Any) -> Any | None:
        """Returns a data set as arrays and row numbers; None if it is to be streamed."""


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
