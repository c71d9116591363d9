"""Random numbers that a script's Python draws while TensorFlow traces its functions: `random` and `numpy.random`.

A step is traced again by us, more than once. Each time its Python must draw what it drew for TensorFlow, and the script must
find the generators afterwards as TensorFlow's trace has left them.
"""

import contextlib
import random
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

# Of `random` and of `numpy.random`.
States = tuple[Any, Any]

_before: ContextVar[States | None] = ContextVar("fdt_draws", default=None)


def states() -> States:
    """Returns where the generators are."""
    return random.getstate(), np.random.get_state()


@contextlib.contextmanager
def as_before(trace: States | None) -> Iterator[None]:
    """Within it, `replayed` goes back to where the generators were before TensorFlow's own trace."""
    token = _before.set(trace)
    try:
        yield
    finally:
        _before.reset(token)


@contextlib.contextmanager
def replayed() -> Iterator[None]:
    """Within it, Python draws the same numbers again."""
    before = _before.get()
    if before is None:
        yield
        return
    now = states()
    _set(before)
    try:
        yield
    finally:
        _set(now)


def _set(to: States) -> None:
    random.setstate(to[0])
    np.random.set_state(to[1])
