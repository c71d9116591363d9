"""Large values are assigned some rows at a time, in place."""

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.native import library
from fdt.program import engine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_large_value_is_assigned_some_rows_at_a_time(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_ASSIGNED_BYTES", 40)
    value = np.arange(99.0).reshape(33, 3).astype(tf.as_dtype(dtype).as_numpy_dtype)
    for pieces in ([value], [value[:1], value[1:8], value[8:8], value[8:]]):
        variable = tf.Variable(tf.zeros([33, 3], dtype))
        before = variable.read_value()
        engine.assign(variable, pieces)
        assert np.array_equal(variable.numpy(), value)
        assert not np.any(before.numpy()), "who has read it keeps what was read"
        place = (
            np.asarray(memoryview(tf.bitcast(variable.read_value(), tf.uint8))).ctypes.data if dtype != "bool" else 0
        )
        engine.assign(variable, pieces)
        if dtype != "bool":
            assert np.asarray(memoryview(tf.bitcast(variable.read_value(), tf.uint8))).ctypes.data == place, "in place"


def test_rows_that_are_not_the_variables_are_refused() -> None:
    variable = tf.Variable(tf.zeros([3, 2]))
    for rows, start in (
        (tf.ones([2, 2]), 2),
        (tf.ones([1, 3]), 0),
        (tf.ones([1, 2], tf.float64), 0),
        (tf.ones([2]), 0),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            library("fdt.program.update").ops.fdt_assign_rows(variable=variable.handle, rows=rows, start=start)
    with pytest.raises(tf.errors.InvalidArgumentError):
        library("fdt.program.update").ops.fdt_assign_rows(variable=variable.handle, rows=tf.ones([1, 2]), start=-1)
    assert not np.any(variable)
