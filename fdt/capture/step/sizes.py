"""Finds out whether the script's Python reads a size that a trace for batches of any size does not know.

    if x.shape[0] != 32: ...          # plain python knows the size; None != 32 is true for every batch

Such a step is traced for the sizes at hand, as TensorFlow traces it. Libraries may read sizes: they are made for unknown ones.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.places import is_own_file

# Methods of a shape that tell of all its sizes.
_METHODS = ("__iter__", "__eq__", "as_list", "is_fully_defined", "num_elements", "is_compatible_with")
# Frames from `_checked` to the Python that reads a shape.
_DEPTH = 3

_are_unread: ContextVar[bool] = ContextVar("fdt_sizes_are_unread", default=False)


class ReadsSizeError(Exception):
    """The script's Python reads a size that is not known."""


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Within it, in this thread, a ReadsSizeError is raised where the script's Python reads a size that is not known."""

    def item(original: Any, shape: Any, key: Any) -> Any:
        return _checked(original(shape, key))

    def sizes(original: Any, shape: Any, *others: Any) -> Any:
        _checked(shape)
        return original(shape, *others)

    patches = Patches()
    patches.wrap(tf.TensorShape, "__getitem__", item)
    for name in _METHODS:
        patches.wrap(tf.TensorShape, name, sizes)
    token = _are_unread.set(True)
    try:
        yield
    finally:
        _are_unread.reset(token)
        patches.undo()


def _checked(read: Any) -> Any:
    """Returns what is read of a shape: a size, or a shape.

    Raises:
        ReadsSizeError: The script's Python reads it, and a size in it is not known.
    """
    is_unknown = read is None or (isinstance(read, tf.TensorShape) and None in (read._dims or ()))
    if is_unknown and _are_unread.get():
        file = sys._getframe(_DEPTH).f_globals.get("__file__")
        if file is None or is_own_file(file):
            raise ReadsSizeError("a size that is not known is read")
    return read
