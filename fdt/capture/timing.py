"""Counts the steps of training that stays on this machine, for `fdt compare`."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from fdt.base.patch import Patches
from fdt.capture.keras.version import KerasVersion
from fdt.capture.loop.observation import Observer
from fdt.capture.session.runs import Sessions

# Called with a number of steps, and the time when they began, by the monotonic clock.
Count = Callable[[int, float], None]


class StepCount:
    """Counts steps of any form; a step inside another one is not counted."""

    def __init__(self, count: Count):
        """
        Args:
            count: Called with steps that have been made.
        """
        self._count = count
        self._depth = 0

    def run(self, step: Callable[[], Any], num_steps: Callable[[], int] = lambda: 1) -> Any:
        """Runs a function that makes steps; counts them afterwards."""
        started_s = time.monotonic()
        self._depth += 1
        try:
            result = step()
        finally:
            self._depth -= 1
        if not self._depth:
            self._count(num_steps(), started_s)
        return result


class TimedKeras:
    """Counts the steps of `fit` and `train_on_batch` of one generation of Keras."""

    def __init__(self, keras: KerasVersion, count: StepCount):
        """Counts nothing yet."""
        self._keras, self._count = keras, count

    def install(self, patches: Patches) -> None:
        """Puts the hook in place."""
        patches.wrap(self._keras.trainer, "make_train_function", self._make_train_function)

    def _make_train_function(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(model, *args, **kwargs)
        function = model.train_function
        if not isinstance(function, _Counted):
            model.train_function = _Counted(
                function, lambda run: self._count.run(run, lambda: self._keras.steps_per_execution(model))
            )
        return made


class _Counted:
    """A train function whose steps are counted."""

    def __init__(self, function: Callable[..., Any], count: Callable[[Callable[[], Any]], Any]):
        self._function, self._count = function, count

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._count(lambda: self._function(*args, **kwargs))


class TimedLoops:
    """Counts the steps of the script's own loops."""

    def __init__(self, count: StepCount):
        """Counts nothing yet."""
        self._count = count
        # Training outside a function has no steps that can be told apart; `fdt run` refuses it.
        self._observer = Observer(lambda what: None)

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        self._observer.install(patches)
        patches.wrap(ConcreteFunction, "_call_flat", self._executed)

    def _executed(self, original: Callable[..., Any], concrete: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() and self._observer.trains(concrete.graph):
            return self._count.run(lambda: original(concrete, *args, **kwargs))
        return original(concrete, *args, **kwargs)


class TimedSessions(Sessions):
    """Counts the training runs of TensorFlow 1's sessions."""

    def __init__(self, count: StepCount):
        """Counts nothing yet."""
        super().__init__(_no_steps)
        self._count = count

    def _do_run(self, original: Callable[..., Any], session: Any, *arguments: Any) -> Any:
        _, targets, fetches, feeds = arguments[:4]
        fed = sorted((reference.deref() for reference in feeds), key=lambda tensor: str(tensor.name))
        if self._plan(session.graph, fetches, targets, fed).trains:
            return self._count.run(lambda: original(session, *arguments))
        return original(session, *arguments)

    def _make_callable(self, original: Callable[..., Any], session: Any, options: Any) -> Any:
        return original(session, options)


def _no_steps() -> Any:
    raise AssertionError("All steps are made in place.")
