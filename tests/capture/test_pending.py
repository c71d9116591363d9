"""A pending tensor does whatever the tensor does, and waits for it once."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.capture.loop.pending import PendingTensor, resolved

USES: dict[str, Callable[[Any], Any]] = {
    "plus": lambda t: t + 1,
    "added to": lambda t: 1.0 + t,
    "added to a tensor": lambda t: tf.constant(1.0) + t,
    "times itself": lambda t: t * t,
    "less": lambda t: bool(t < 3),
    "equal": lambda t: bool(t == 2.5),
    "mean of a list": lambda t: tf.reduce_mean([t, t]),
    "stack": lambda t: tf.stack([t, t]),
    "cast": lambda t: tf.cast(t, tf.float64),
    "converted": tf.convert_to_tensor,
    "squeeze": tf.squeeze,
    "mean of an array": lambda t: np.mean([t, t]),
    "array": np.asarray,
    "is nan": np.isnan,
    "numpy": lambda t: t.numpy(),
    "item": lambda t: t.numpy().item(),
    "float": float,
    "int": int,
    "format": lambda t: f"{t:.3f}",
    "percent": lambda t: "%.3f" % t,  # noqa: UP031
    "text": str,
    "representation": repr,
    "keras": keras.ops.square,
    "metric": lambda t: keras.metrics.Mean()(t),
    "variable": lambda t: tf.Variable(0.0).assign_add(t).numpy(),
    "data set": lambda t: next(iter(tf.data.Dataset.from_tensors(t))),
    "is a tensor": lambda t: (isinstance(t, tf.Tensor), tf.is_tensor(t), keras.ops.is_tensor(t)),
    "shape": lambda t: f"{t.shape} {t.dtype} {t.ndim}",
    "nested": lambda t: tf.nest.map_structure(lambda leaf: leaf + 1, {"a": t})["a"],
}


@pytest.mark.parametrize("use", USES)
def test_does_what_the_tensor_does(use: str) -> None:
    value = tf.constant(2.5)
    expected, received = USES[use](value), USES[use](PendingTensor(value.dtype, value.shape, lambda: value))
    if isinstance(expected, tf.Tensor):
        expected, received = expected.numpy(), received.numpy()
    np.testing.assert_array_equal(received, expected)


def test_several_entries() -> None:
    value = tf.constant([1.0, 2.0])
    pending = PendingTensor(value.dtype, value.shape, lambda: value)
    assert [float(v) for v in pending] == [1.0, 2.0]
    assert (float(pending[1]), len(pending)) == (2.0, 2)
    assert int(tf.argmax(pending)) == 1


def test_waits_once_and_not_for_what_is_known() -> None:
    asked: list[int] = []

    def get() -> tf.Tensor:
        asked.append(1)
        return tf.constant(1.0)

    pending = PendingTensor(tf.float32, tf.TensorShape([]), get)
    assert (pending.dtype, pending.shape, tf.is_tensor(pending), asked) == (tf.float32, (), True, [])
    assert float(pending) + float(pending) == 2.0
    assert asked == [1]
    assert resolved(pending) is resolved(pending)
    assert resolved("text") == "text"


def test_an_error_reaches_whoever_looks() -> None:
    def get() -> tf.Tensor:
        raise ValueError("gone")

    pending = PendingTensor(tf.float32, tf.TensorShape([]), get)
    for use in (float, tf.convert_to_tensor, lambda t: t.numpy()):
        with pytest.raises(ValueError, match="gone"):
            use(pending)
