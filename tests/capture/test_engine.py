"""Arrays of the store become tensors, of every type that TensorFlow has numbers in."""

import numpy as np
import pytest
import tensorflow as tf

from fdt.program.engine import _tensor
from fdt.program.step_program import tensor_spec
from fdt.v1 import job_pb2

_TYPES = (
    "bfloat16 float16 float32 float64 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128"
).split()
_EXPERIMENTAL = "float8_e5m2 float8_e4m3fn".split()


@pytest.mark.parametrize("name", [*_TYPES, *_EXPERIMENTAL])
def test_an_array_is_the_tensor_that_it_was(name: str) -> None:
    dtype = getattr(tf, name, None) or getattr(tf.dtypes.experimental, name)
    array = np.arange(12).reshape(4, 3).astype(dtype.as_numpy_dtype)
    content = np.frombuffer(bytearray(4096), np.uint8)
    # Where a mapped blob would be.
    start = -content.ctypes.data % 64
    content = content[start : start + 2048]
    content[64 : 64 + array.nbytes] = array.view(np.uint8).reshape(-1)
    described = job_pb2.Array(tensor=tensor_spec(tf.TensorSpec([4, 3], dtype)), offset=64)
    tensor = _tensor(content, described)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), array)
