"""Replaces `tensor.numpy()` while an eager step is traced: returns an array of which only the size is known.

Scripts read its shape (`np.shape(mean.numpy())`). Reading a value raises an error, since there is none yet. `len(tensor)` works
as it does eagerly.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import SymbolicTensor

from fdt.base.patch import Patches
from fdt.script.outline.files import is_own

_is_traced: ContextVar[bool] = ContextVar("fdt_is_traced", default=False)


class Unseen:
    """A placeholder for an array.

    Attributes:
        tensor: The tensor whose value it will be.
        shape: Its shape.
        dtype: Its type.
        ndim: The number of its dimensions.
        size: The number of its elements.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: tf.Tensor) -> None:
        if not tensor.shape.is_fully_defined():
            raise AttributeError("a tensor's number of rows is looked at with .numpy(), and is not known yet")
        self.tensor = tensor
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype: np.dtype = np.dtype(tensor.dtype.as_numpy_dtype)
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))

    def __len__(self) -> int:
        """Returns its number of rows."""
        return self.shape[0]

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        """Returns the tensor, as a constant for gradients."""
        if dtype is not None and dtype != self.tensor.dtype:
            raise TypeError(f"expected {dtype.name}, received an array of {self.dtype}")
        return tf.stop_gradient(self.tensor)

    def _look(self, *_: Any) -> Any:
        raise NotImplementedError("a tensor's value is looked at with .numpy() before the step is over")

    __array__ = __bool__ = __eq__ = __ne__ = __repr__ = __str__ = __format__ = _look  # type: ignore[assignment]


def install(patches: Patches) -> None:
    """Puts the hook in place."""

    def numpy(tensor: tf.Tensor) -> Any:
        if not _is_traced.get() or not is_own(sys._getframe(1).f_code.co_filename):
            # Libraries tell by this attribute whether a tensor has a value.
            raise AttributeError("'SymbolicTensor' object has no attribute 'numpy'")
        return lambda: Unseen(tensor)

    def length(original: Any, tensor: tf.Tensor) -> int:
        is_known = tensor.shape.rank and tensor.shape[0] is not None
        if not is_known or not _is_traced.get() or not is_own(sys._getframe(2).f_code.co_filename):
            return int(original(tensor))
        return int(tensor.shape[0])

    patches.add(SymbolicTensor, "numpy", property(numpy))
    patches.wrap(tf.Tensor, "__len__", length)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Turns the placeholders on while a step that is eager in the script is traced."""
    token = _is_traced.set(True)
    try:
        yield
    finally:
        _is_traced.reset(token)
