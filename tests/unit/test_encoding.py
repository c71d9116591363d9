"""What Horovod exchanges of a tensor of each type, and what comes of it: put together here, as Horovod does it."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from fdt.program.layout import Combine
from hfdt.encoding import decode, encode

# What Horovod's operations take (its `mpi_ops.cc`), NCCL included.
REDUCED = {"float16", "float32", "float64", "int32", "int64"}
GATHERED = REDUCED | {"uint8", "int8"}
SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]
FLOATS, COMPLEX = ["bfloat16", "float16", "float32", "float64"], ["complex64", "complex128"]


def exchanged(parts: Sequence[np.ndarray], combine: Combine, dtype: tf.DType) -> np.ndarray:
    sent = [encode(tf.constant(part, dtype), combine) for part in parts]
    assert {tensor.dtype.name for tensor in sent} <= REDUCED
    together = {
        Combine.SUM: tf.add_n,
        Combine.MAX: lambda tensors: tf.reduce_max(tf.stack(tensors), 0),
        Combine.MIN: lambda tensors: tf.reduce_min(tf.stack(tensors), 0),
    }[combine](sent)
    found = decode(together, dtype, combine)
    assert found.dtype == dtype
    return np.asarray(found)


@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED, *FLOATS, *COMPLEX])
def test_sums(name: str) -> None:
    dtype = tf.dtypes.as_dtype(name)
    kind = np.dtype(dtype.as_numpy_dtype)
    if kind.kind in "iu":
        # The third does not fit, as on one machine.
        parts = [np.array([1, 0, np.iinfo(kind).max, 7], kind), np.array([0, np.iinfo(kind).min, 2, 3], kind)]
    else:
        parts = [np.array([1.5, -2, 0.25, 64], kind), np.array([0.5, -3, 0.25, 1], kind)]
    if kind.kind == "c":
        parts = [part * kind.type(1 + 2j) for part in parts]
    np.testing.assert_array_equal(exchanged(parts, Combine.SUM, dtype), parts[0] + parts[1])


@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED, *FLOATS])
@pytest.mark.parametrize(("combine", "of_two"), [(Combine.MAX, np.maximum), (Combine.MIN, np.minimum)])
def test_largest_and_smallest(name: str, combine: Combine, of_two: np.ufunc) -> None:
    dtype = tf.dtypes.as_dtype(name)
    kind = np.dtype(dtype.as_numpy_dtype)
    limits = np.iinfo(kind) if kind.kind in "iu" else ml_dtypes.finfo(kind)
    parts = [np.array([limits.max, limits.min, 3, 0], kind), np.array([1, 2, limits.max, limits.min], kind)]
    np.testing.assert_array_equal(exchanged(parts, combine, dtype), of_two(*parts))


def test_truths_are_or_and_and() -> None:
    parts = [np.array([True, False, True, False]), np.array([True, True, False, False])]
    np.testing.assert_array_equal(exchanged(parts, Combine.MAX, tf.bool), parts[0] | parts[1])
    np.testing.assert_array_equal(exchanged(parts, Combine.MIN, tf.bool), parts[0] & parts[1])


@pytest.mark.parametrize(
    "name",
    [*SIGNED, *UNSIGNED, *FLOATS, *COMPLEX, "bool", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"],
)
def test_rows_arrive_as_they_were(name: str) -> None:
    dtype = tf.dtypes.as_dtype(name)
    given = tf.constant(np.array([[0, 1], [2, 3]]).astype(dtype.as_numpy_dtype))
    sent = encode(given)
    assert sent.dtype.name in GATHERED and sent.shape[0] == 2
    # Another worker's rows come behind these.
    found = decode(tf.concat([sent, sent], 0), dtype)
    assert found.dtype == dtype and found.shape == (4, 2)
    np.testing.assert_array_equal(found.numpy(), np.concatenate([given.numpy()] * 2))
