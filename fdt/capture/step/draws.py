"""Replays random numbers that a script's Python draws while a function is traced (`random`, `numpy.random`).

The client traces a step again, more than once. Each time its Python must draw the numbers that it drew in TensorFlow's trace,
and afterwards the generators must be in the states in which TensorFlow's trace left them.
"""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

# States of `random` and of `numpy.random`.
States = tuple[Any, Any]

_before: ContextVar[States | None] = ContextVar("fdt_draws", default=None)


def states() -> States:
    """Returns the states of the generators."""
    return random.getstate(), np.random.get_state()


@contextlib.contextmanager
def as_before(trace: States | None) -> Iterator[None]:
    """Makes `replayed` go back to the generators' states before TensorFlow's own trace."""
    token = _before.set(trace)
    try:
        yield
    finally:
        _before.reset(token)


@contextlib.contextmanager
def replayed() -> Iterator[None]:
    """Makes Python draw the same numbers again; restores the generators' states at the end."""
    before = _before.get()
    if before is None:
        yield
        return
    now = states()
    restore(before)
    try:
        yield
    finally:
        restore(now)


def restore(to: States) -> None:
    """Sets the generators to earlier states."""
    random.setstate(to[0])
    np.random.set_state(to[1])


Generator = random.Random | np.random.RandomState | np.random.Generator
# Methods of generators that draw nothing, or change what they are given.
_SETTING = frozenset({"seed", "shuffle", "getstate", "setstate", "get_state", "set_state"})


# Methods of arrays that only compute.
_OF_ARRAYS = frozenset(
    "all any argmax argmin argsort astype clip copy cumsum diagonal flatten max mean min prod ravel repeat reshape round "
    "squeeze std sum swapaxes transpose var".split()
)


class Draws:
    """Numbers drawn before a step; they are undone if the step turns out to draw them itself."""

    def __init__(self) -> None:
        # For each expression: its generators, and their states before it.
        self._before: list[list[tuple[Generator, Any]]] = []

    def draw(self, functions: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """Returns an expression's value if it calls only generators' and arrays' methods; else None, without drawing."""
        self._before.append([])
        for function in functions:
            generator = getattr(function, "__self__", None)
            if isinstance(generator, np.ndarray) and function.__name__ in _OF_ARRAYS:
                continue
            if not isinstance(generator, Generator) or function.__name__ in _SETTING:
                return None
            self._before[-1].append((generator, state(generator)))
        return compute()

    def undo_last(self) -> None:
        """Restores the generators' states from before the last expression."""
        for generator, before in self._before.pop() if self._before else ():
            set_state(generator, before)

    def undo(self) -> None:
        """Restores the generators' states from before all expressions."""
        while self._before:
            self.undo_last()


def state(generator: Generator) -> Any:
    """Returns a generator's state."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def is_at(generator: Generator, before: Any) -> bool:
    """Whether a generator is in the state `before`."""
    return pickle.dumps(state(generator)) == pickle.dumps(before)


def set_state(generator: Generator, to: Any) -> None:
    """Sets a generator's state."""
    if isinstance(generator, random.Random):
        generator.setstate(to)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = to
    else:
        generator.set_state(to)
