"""Refuses training that cannot be distributed, where it begins, so that it never runs on one machine unnoticed."""

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from fdt.base.patch import Patches
from fdt.errors import UnsupportedError
from fdt.script.outline.sites import SITES

_REMEDY = "Train with model.fit; put a custom step into train_step of a keras.Model."
_eager_remedy: ContextVar[str] = ContextVar(
    "fdt_eager_remedy", default="Put what is done with one batch into a function, and write @tf.function above it."
)
_in_place: ContextVar[bool] = ContextVar("fdt_in_place", default=False)


@contextmanager
def in_place() -> Iterator[None]:
    """Allows steps to run on this machine within the context, since they run on the pool too."""
    token = _in_place.set(True)
    try:
        yield
    finally:
        _in_place.reset(token)


@contextmanager
def remedy_for_eager(remedy: str) -> Iterator[None]:
    """Sets the remedy that messages give for a step outside a tf.function."""
    token = _eager_remedy.set(remedy)
    try:
        yield
    finally:
        _eager_remedy.reset(token)


def is_in_place() -> bool:
    """Returns whether a step may be made on this machine."""
    return _in_place.get()


class Refusals:
    """Refuses training that cannot be distributed, or lets its eager steps run on this machine."""

    def __init__(
        self,
        note: Callable[[str, str, str], None] = lambda *_: None,
        stays: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            note: Called for each refusal: where, what, and why, with the remedy.
            stays: Called once for each place of eager steps that cannot be outlined and so run here; None refuses them.
        """
        self._note, self._stays = note, stays
        self._told: set[str] = set()

    def refuse(self, what: str, remedy: str = _REMEDY) -> NoReturn:
        """Records a refusal, and raises it.

        Raises:
            UnsupportedError: Always.
        """
        reason = f"It is not distributed in this version. {remedy}"
        self._note(where(), what, reason)
        raise UnsupportedError(f"{where()}: {what}. {reason}")

    def eager(self, what: str) -> None:
        """Called for a step that is made outside a tf.function.

        Raises:
            UnsupportedError: Such steps are refused.
        """
        # The step may be in a function that has called this one.
        problem = next(filter(None, (SITES.problem(*place) for place in _places_in_script())), None)
        if self._stays is None:
            others = "" if problem is None else f"{problem} "
            self.refuse(what, f"{others}{_eager_remedy.get()} With --else local it is made on this machine.")
        elif where() not in self._told:
            self._told.add(where())
            self._stays(f"{where()}: {what}, is made on this machine. {problem or ''}".rstrip())


def guard_keras_optimizers(patches: Patches, refusals: Refusals) -> None:
    """Refuses gradients that reach an optimizer of Keras 3 outside a step that is being captured."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    _guard(patches, refusals, BaseOptimizer, "apply")


def guard_keras_2_optimizers(patches: Patches, refusals: Refusals, optimizers: Iterable[type]) -> None:
    """Refuses gradients that reach an optimizer of Keras 2 outside a step that is being captured."""
    for optimizer in optimizers:
        if "apply_gradients" in vars(optimizer):
            _guard(patches, refusals, optimizer, "apply_gradients")


def _guard(patches: Patches, refusals: Refusals, optimizer_class: type, name: str) -> None:
    from fdt.capture.loop.observation import observation
    from fdt.program.holes import current_holes

    def apply(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        seen = observation()
        if seen is not None:
            seen.trains = True
        elif current_holes() is None and not _in_place.get() and not _builds_session_graph():
            what = f"optimizer.{name} of {type(optimizer).__name__}"
            refuse_strategy(refusals, what)
            refusals.eager(f"{what} outside a tf.function, in a training loop of the script's own")
        return original(optimizer, *args, **kwargs)

    patches.wrap(optimizer_class, name, apply)


def refuse_strategy(refusals: Refusals, what: str) -> None:
    """Refuses a step that a distribution strategy runs: its threads do not know the function around the step."""
    import tensorflow as tf

    if tf.distribute.has_strategy() and not _in_place.get():
        refusals.refuse(
            f"{what} under {type(tf.distribute.get_strategy()).__name__}",
            "Two ways of distributing cannot be combined: give the strategy one device, as "
            'tf.distribute.OneDeviceStrategy("/cpu:0") has, or call the step without one.',
        )


def _builds_session_graph() -> bool:
    """Whether the script builds a graph for a session, which is checked when it is run."""
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph

    return not tf.executing_eagerly() and not isinstance(tf.compat.v1.get_default_graph(), FuncGraph)


def guard_v1_optimizers(patches: Patches, refusals: Refusals) -> None:
    """Refuses TensorFlow 1's optimizers (tf.compat.v1.train) except in a graph for a session."""
    from tensorflow.python.training.optimizer import Optimizer

    def compute_gradients(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not _builds_session_graph():
            what = f"tf.compat.v1.train.{type(optimizer).__name__} outside a graph of TensorFlow 1"
            refusals.refuse(what, "Use an optimizer of tf.keras.optimizers.")
        return original(optimizer, *args, **kwargs)

    patches.wrap(Optimizer, "compute_gradients", compute_gradients)
    patches.wrap(Optimizer, "apply_gradients", compute_gradients)


def where() -> str:
    """Returns file and line of the script's innermost frame, in this thread, or else in the main thread."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    frames = [f for f in traceback.extract_stack() if f.filename == script]
    if not frames:
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        frames = [f for f in traceback.extract_stack(main) if f.filename == script]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "in the script"


def where_raised(error: Exception) -> str:
    """Returns file and line of the innermost frame of the script's own files that an error has gone through."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == script or SITES.has(f.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else where()


def _places_in_script() -> Iterator[tuple[str, int]]:
    """Yields file and line of the frames of the script's own files, the innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if SITES.has(frame.f_code.co_filename):
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
