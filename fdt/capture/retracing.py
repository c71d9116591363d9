"""Has functions traced again that were traced without the hooks, or with hooks that have been removed.

TensorFlow runs a function as it was traced. Traced before the hooks are installed, it would train on this machine; traced with
them, it would train on a pool that is gone once they are removed. Tracing it again changes no value: TensorFlow does so for
every new kind of argument.
"""

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from fdt.capture.keras.train_function import RemoteTrainFunction
from fdt.capture.loop.observation import writes
from fdt.capture.traces import forget, named, traces_of
from fdt.script.outline.files import is_own


@contextlib.contextmanager
def traced_anew(say: Callable[[str], None]) -> Iterator[None]:
    """Makes functions and models forget invalid traces, at the beginning and at the end of the context.

    Args:
        say: Called with messages about the script's own functions that were traced before and may train.
    """
    before = [function for function in _functions() if any(writes(c.graph) for c in traces_of(function))]
    own = [function for function in before if _is_own(function.python_function)]
    kept = {weakref.ref(concrete): named(function) for function in own for concrete in traces_of(function)}
    for function in before:
        forget(function)
    for model in _models():
        model.train_function = None
    if own:
        say(f"traced before, so traced again when they are called: {', '.join(sorted(map(named, own)))}")
    gc.collect()
    for name in sorted({name for concrete, name in kept.items() if concrete() is not None}):
        say(f"warning: a concrete function of {name} is kept somewhere, and what it trains it trains on this machine")
    known = weakref.WeakSet(concrete for function in _functions() for concrete in traces_of(function))
    try:
        yield
    finally:
        forget_all(known)


def forget_all(known: Collection[Any] = ()) -> None:
    """Makes functions forget all traces except `known`, and models their steps on a pool."""
    for function in _functions():
        if any(concrete not in known for concrete in traces_of(function)):
            forget(function)
    for model in _models():
        if isinstance(model.train_function, RemoteTrainFunction):
            model.train_function = None


def _functions() -> list[Function]:
    """Returns all tf.functions of this process that are made of Python functions."""
    return [each for each in _objects(Function) if hasattr(each.python_function, "__code__")]


def _models() -> list[Any]:
    """Returns all models of Keras that have a step."""
    trainers = []
    with contextlib.suppress(ImportError):
        from fdt.capture.keras.keras_3 import Keras3

        trainers.append(Keras3.trainer)
    with contextlib.suppress(ImportError):
        if "tf_keras" in sys.modules:
            from fdt.capture.keras.keras_2 import Keras2

            trainers.append(Keras2.trainer)
    found = [model for trainer in trainers for model in _objects(trainer)]
    return [model for model in found if getattr(model, "train_function", None) is not None]


def _objects(kind: type) -> list[Any]:
    # Not isinstance, which reads an attribute of the object: for some objects that has side effects.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _is_own(function: Any) -> bool:
    of_a_library = str(function.__module__).split(".")[0] in ("keras", "tensorflow", "tf_keras")
    return not of_a_library and is_own(function.__code__.co_filename)
