"""Passes calls of a distribution strategy of one replica, which distributes nothing, to TensorFlow's default strategy.

So a script that was written for several GPUs, on a machine that has one or none, gets workers as any other script does. The
global batch of one replica is the batch. Keras 3 still treats a model that was made under the strategy differently: it
remembers the strategy (`made_under`), and each `fit` takes a batch before the first epoch, to build the model by. A strategy of
more replicas is left as it is, and is refused where it trains.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.distribute_lib import StrategyBase

from fdt.base.patch import Patches
from fdt.client.report import say

# The strategy's methods that create distributed values, or read them.
_METHODS = (
    "distribute_datasets_from_function",
    "experimental_distribute_dataset",
    "experimental_local_results",
    "reduce",
    "run",
)


# The strategy in whose scope the script is.
_current: ContextVar[Any] = ContextVar("fdt_strategy", default=None)


def made_under() -> Any | None:
    """Returns the strategy of one replica in whose scope a model is being made; None if there is none."""
    return _current.get()


class Strategies:
    """The hooks."""

    def __init__(self) -> None:
        self._said = False

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(StrategyBase, "scope", self._scope)
        for name in _METHODS:
            patches.wrap(StrategyBase, name, _by_default(name))

    def _scope(self, original: Callable[..., Any], strategy: Any) -> Any:
        if not is_alone(strategy):
            return original(strategy)
        if not self._said:
            self._said = True
            say(
                f"{type(strategy).__name__} has one replica: the script runs as without it, and the pool's workers train"
            )
        return _within(strategy)


@contextlib.contextmanager
def _within(strategy: Any) -> Iterator[Any]:
    token = _current.set(strategy)
    try:
        yield strategy
    finally:
        _current.reset(token)


def _by_default(name: str) -> Callable[..., Any]:
    def method(original: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_alone(strategy):
            return original(strategy, *args, **kwargs)
        return getattr(tf.distribute.get_strategy(), name)(*args, **kwargs)

    return method


def is_alone(strategy: Any) -> bool:
    """Returns whether a strategy distributes over this process's devices, and has only one."""
    of_devices = (
        tf.distribute.MirroredStrategy,
        tf.distribute.OneDeviceStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
    )
    return isinstance(strategy, of_devices) and strategy.num_replicas_in_sync == 1
