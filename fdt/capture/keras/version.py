"""What differs between the generations of Keras, as capture uses it."""

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import tensorflow as tf

from fdt.base.patch import Patches


class DataHooks(Protocol):
    """What `fit` asks when it is about to read its training data."""

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
        """Returns whether a model's step, Keras's own, will find nothing to train, and go on without."""

    def converted(self, train_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a train_step as this Keras would trace it."""

    def step_in_place(self, model: Any) -> Any:
        """Returns a tf.function of one batch that makes a step on this machine, as this Keras traces it for its own `fit`."""

    def compute_in_double(self) -> None:
        """Has all that is built from now on compute in double precision, unless the script chooses another."""

    def averages_in_bar(self) -> bool:
        """Returns whether the progress bar averages what is no metric over the steps that it hears of, to an epoch's end."""

    def steps_per_execution(self, model: Any) -> int:
        """Returns how many steps one call of the train function makes."""

    def metrics(self, model: Any) -> list[Any]:
        """Returns a model's metrics, without those that only hold others."""

    def building_layers(self, model: Any, rows: int | None) -> contextlib.AbstractContextManager[None]:
        """Within it a trace for any number of rows may build layers, which then know what plain Keras would have told them.

        Args:
            model: The model.
            rows: Of every batch; None if they differ.
        """

    def counter(self, model: Any) -> tf.Variable | None:
        """Returns what Keras's own train function counts steps on, beside train_step; None if there is none."""
