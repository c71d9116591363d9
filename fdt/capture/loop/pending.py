"""Tensors whose values the pool has still to send."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

# Not `type(tf.constant(0))`: an operation at import initialises TensorFlow before the script configures it.
from tensorflow.python.framework.ops import EagerTensor

# Names that Python must find on the object itself.
_OWN = {
    "__abstractmethods__", "__array__", "__class__", "__class_getitem__", "__delattr__", "__dict__", "__dir__", "__doc__",
    "__getattr__", "__getattribute__", "__init__", "__init_subclass__", "__module__", "__new__", "__setattr__",
    "__slots__", "__subclasshook__", "__tf_tensor__", "__weakref__", "dtype", "shape",
}  # fmt: skip


class PendingTensor(tf.Tensor):  # type: ignore[misc]
    """A tensor of a step that may still be running; reading it waits for the step.

    It is no EagerTensor, because TensorFlow's own pending ones deadlock with Python threads: TensorFlow reads
    their shape and memory while it holds the interpreter's lock. TensorFlow converts it as it converts any tensor-like object.
    """

    def __init__(self, dtype: tf.DType, shape: tf.TensorShape, get: Callable[[], tf.Tensor]):
        """Creates the tensor without waiting.

        Args:
            dtype: Type of the value.
            shape: Shape of the value, as far as known.
            get: Waits for the value.
        """
        for name, value in {"_fdt_dtype": dtype, "_fdt_shape": shape, "_fdt_get": get, "_fdt_value": None}.items():
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        """Waits for the value and asks it, except for attributes that are known beforehand."""
        if name in _OWN or name.startswith("_fdt_"):
            return object.__getattribute__(self, name)
        return getattr(self._fdt_resolved(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._fdt_resolved(), name, value)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        """Converts to a tensor."""
        return self._fdt_resolved().__tf_tensor__(dtype, name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Converts to an array."""
        return np.asarray(self._fdt_resolved(), dtype)

    @property
    def dtype(self) -> tf.DType:
        """The type."""
        return self._fdt_dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The shape."""
        return self._fdt_shape if self._fdt_shape.is_fully_defined() else self._fdt_resolved().shape

    def _fdt_resolved(self) -> Any:
        if self._fdt_value is None:
            object.__setattr__(self, "_fdt_value", self._fdt_get())
            object.__setattr__(self, "_fdt_get", None)
        return self._fdt_value


def resolved(value: Any) -> Any:
    """Waits for a pending tensor and returns its value; returns anything else as it is."""
    return value._fdt_resolved() if isinstance(value, PendingTensor) else value


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: PendingTensor, *args: Any) -> Any:
        value = self._fdt_resolved()
        return getattr(type(value), name)(value, *args)

    method.__name__ = name
    return method


def _pass_on_special_methods() -> None:
    """Defines special methods on the class, where Python looks them up, past __getattribute__."""
    for name in dir(EagerTensor):
        if name.startswith("__") and name not in _OWN and callable(getattr(EagerTensor, name)):
            setattr(PendingTensor, name, _passed_on(name))


_pass_on_special_methods()
