"""What a worker may rely on, wherever its arrays are: in this process, or as files of a host."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from fdt.v1 import program_pb2
from nfdt.feed import Feed, Feeds, FileFeed, OwnFeed

RANDOM = np.random.default_rng(0)
ARRAYS = [
    RANDOM.random((20, 3, 2), np.float32),
    RANDOM.random((20, 1)) > 0.5,
    np.arange(20, dtype=np.int64),
    RANDOM.random((20, 2)).astype(ml_dtypes.bfloat16),
    RANDOM.integers(0, 255, (20, 4), np.uint8),
    np.zeros((20, 0), np.float32),
]
Open = Callable[[list[np.ndarray], Path], Feed]


def own(arrays: list[np.ndarray], directory: Path) -> Feed:
    return OwnFeed([tf.constant(array) for array in arrays])


def files(arrays: list[np.ndarray], directory: Path) -> Feed:
    paths, specs = [], []
    for number, array in enumerate(arrays):
        path = directory / str(number)
        path.write_bytes(array.tobytes())
        paths.append(str(path))
        specs.append(program_pb2.Tensor(shape=array.shape, dtype=tf.dtypes.as_dtype(array.dtype).name))
    return FileFeed(paths, specs, "/CPU:0")


def of_several(arrays: list[np.ndarray], directory: Path) -> Feed:
    return Feeds([own(arrays, directory), files(arrays, directory)])


@pytest.fixture(params=[own, files, of_several])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Feed:
    return request.param(ARRAYS, tmp_path)


@pytest.mark.parametrize("rows", [[3, 1, 1, 19], [0], list(range(20))], ids=["repeated", "one", "all"])
@pytest.mark.parametrize("worker", [0, 1])
def test_a_batch_is_the_rows_of_the_arrays(feed: Feed, rows: list[int], worker: int) -> None:
    batch = feed.batch(worker, np.array(rows, np.int64))
    assert len(batch) == len(ARRAYS)
    for tensor, array in zip(batch, ARRAYS, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array[rows])


def test_every_worker_has_its_own_hosts_feed() -> None:
    feed = Feeds([OwnFeed([tf.constant([10 * number, 10 * number + 1])]) for number in range(2)])
    for worker in (1, 1, 0):
        assert int(feed.batch(worker, np.array([1]))[0][0]) == 10 * worker + 1
