"""What differs between the generations of Keras, as capture uses it."""

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from fdt.patch import Patches

if TYPE_CHECKING:
    from fdt.capture.keras.hooks import KerasHooks
    from fdt.capture.step.observer import StepObserver


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

    def hook_fit(self, patches: Patches, fit: "KerasHooks") -> None:
        """Hooks `fit`: it hands over its data, and waits at the end of each epoch."""

    def hook_step(self, patches: Patches, seen: "StepObserver") -> None:
        """Hooks what a step calls, so that it reports to the running trace."""

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

    def building_metrics(self, model: Any) -> None:
        """Records that the trace of a `fit`'s step is going to build compiled metrics.

        Keras itself builds them in the first step, after the reset that begins the epoch: what state a metric brings along from
        another model is then still in its first result. That reset passes them by here too.
        """

    def count(self, model: Any, num_steps: int) -> None:
        """Records steps where Keras's own train function would."""


def imported_versions() -> list[KerasVersion]:
    """Returns those that the script has imported: a step may use either."""
    versions: list[KerasVersion] = []
    if "keras.src.optimizers" in sys.modules:
        from fdt.capture.keras.keras_3 import Keras3

        versions.append(Keras3())
    if "tf_keras.src.optimizers" in sys.modules:
        from fdt.capture.keras.keras_2 import Keras2

        versions.append(Keras2())
    return versions
