"""Replaces `model.train_function`."""

from collections.abc import Callable
from typing import Any

from fdt.capture.keras.traced_run import TracedRun
from fdt.capture.remote import RemoteStep
from fdt.capture.step.traced_step import TracedStep
from fdt.errors import UnsupportedError
from fdt.program.element import Element


class RemoteTrainFunction:
    """The train function of a model; like Keras's own it lives until the next compile."""

    def __init__(self) -> None:
        self._steps: dict[Any, RemoteStep] = {}
        self.run: TracedRun | None = None

    def step(self, element: Element, trace: Callable[[Element], TracedStep]) -> RemoteStep:
        """Returns the step for batches of this form, traced at the first call."""
        key = element.key()
        watch = self._steps[key].traced.watch if key in self._steps else None
        if key not in self._steps or (watch is not None and watch.changed()):
            self._steps[key] = RemoteStep(trace(element))
        return self._steps[key]

    def __call__(self, iterator: Any) -> Any:
        """Runs one step (or `steps_per_execution` of them) on the pool; returns the newest logs."""
        if self.run is None:
            raise UnsupportedError(
                "train_function was called outside model.fit and model.train_on_batch. Call one of these instead."
            )
        return self.run.run_step(iterator)
