"""What a worker may rely on, wherever its arrays are: in this process, or as files of a host."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from fdt.v1 import program_pb2
from nfdt.feed import Arrays, mapped

RANDOM = np.random.default_rng(0)
ARRAYS = [
    RANDOM.random((20, 3, 2), np.float32),
    RANDOM.random((20, 1)) > 0.5,
    np.arange(20, dtype=np.int64),
    RANDOM.random((20, 2)).astype(ml_dtypes.bfloat16),
    RANDOM.integers(0, 255, (20, 4), np.uint8),
    np.zeros((20, 0), np.float32),
]


def own(arrays: list[np.ndarray], directory: Path) -> Arrays:
    return Arrays([tf.constant(array) for array in arrays])


def files(arrays: list[np.ndarray], directory: Path) -> Arrays:
    paths, specs = [], []
    for number, array in enumerate(arrays):
        path = directory / str(number)
        path.write_bytes(array.tobytes())
        paths.append(str(path))
        specs.append(program_pb2.Tensor(shape=array.shape, dtype=tf.dtypes.as_dtype(array.dtype).name))
    return mapped(paths, specs, "/CPU:0")


@pytest.fixture(params=[own, files])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Arrays:
    return request.param(ARRAYS, tmp_path)


@pytest.mark.parametrize("rows", [[3, 1, 1, 19], [0], list(range(20))], ids=["repeated", "one", "all"])
def test_a_batch_is_the_rows_of_the_arrays(kept: Arrays, rows: list[int]) -> None:
    batch = kept.batch(np.array(rows, np.int64))
    assert len(batch) == len(ARRAYS)
    for tensor, array in zip(batch, ARRAYS, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array[rows])
