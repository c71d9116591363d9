"""Variables are read and set past their methods."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.program import variable_value


class Doubled:
    """A variable of a kind of its own, as TensorFlow's strategies have."""

    def __init__(self) -> None:
        self.value = np.zeros(2, np.float32)

    def read_value(self) -> tf.Tensor:
        return tf.constant(2 * self.value)

    def assign(self, value: Any, read_value: bool) -> None:
        del read_value
        self.value = np.asarray(value) / 2


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1).reshape(()),
        np.array([np.nan, -0.0, np.inf]),
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array([True, False]),
        np.zeros((0, 3), np.float16),
        np.array([1.5, -2.0], tf.bfloat16.as_numpy_dtype),
        np.array([1 + 2j], np.complex64),
        np.array([b"a", b"", b"b\0"], object),
    ],
    ids=lambda value: f"{value.dtype.name}-{value.shape}",
)
def test_a_variable_gets_a_value(value: np.ndarray) -> None:
    variable = tf.Variable(tf.zeros_like(tf.constant(value)))
    variable_value.write(variable, value)
    found = variable_value.read(variable).numpy()
    assert found.dtype == value.dtype and found.shape == value.shape
    assert found.tobytes() == value.tobytes() if value.dtype != object else found.tolist() == value.tolist()
    variable_value.write(variable, tf.zeros_like(tf.constant(value)))
    assert variable_value.read(variable).numpy().tolist() == tf.zeros_like(tf.constant(value)).numpy().tolist()


def test_what_was_read_stays_as_it_was() -> None:
    variable, given = tf.Variable([1.0, 2.0]), np.array([3.0, 4.0], np.float32)
    before = variable_value.read(variable)
    variable_value.write(variable, given)
    given[:] = 0
    variable.assign_add([1.0, 1.0])
    assert before.numpy().tolist() == [1.0, 2.0] and variable.numpy().tolist() == [4.0, 5.0]


def test_a_variable_gets_another_ones_value_and_keeps_it() -> None:
    one, other = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0])
    variable_value.write(other, one)
    one.assign_add([1.0, 1.0])
    assert other.numpy().tolist() == [1.0, 2.0] and one.numpy().tolist() == [2.0, 3.0]


def test_a_value_of_another_shape_or_type_is_refused_as_by_the_variable() -> None:
    variable = tf.Variable([1.0, 2.0])
    with pytest.raises(ValueError, match="Shape mismatch"):
        variable_value.write(variable, np.zeros(3, np.float32))
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        variable_value.write(variable, tf.constant([1, 2], tf.int64))
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_other_kinds_of_variables_are_asked() -> None:
    variable: Any = Doubled()
    variable_value.write(variable, np.array([2.0, 4.0], np.float32))
    assert variable.value.tolist() == [1.0, 2.0] and variable_value.read(variable).numpy().tolist() == [2.0, 4.0]
