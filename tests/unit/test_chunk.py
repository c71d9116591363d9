"""Batches that travel together lie row after row, and every array where its description says."""

import numpy as np

from fdt.client.chunk import Chunk
from fdt.transport.blobs import one_time
from fdt.v1 import program_pb2


def spec(array: np.ndarray) -> program_pb2.Tensor:
    return program_pb2.Tensor(name="array", dtype=array.dtype.name, shape=array.shape)


def add(chunk: Chunk, *arrays: np.ndarray) -> None:
    chunk.add([a.reshape(-1).view(np.uint8) for a in arrays], [spec(a) for a in arrays])


def test_a_batch_is_found_by_its_rows() -> None:
    random, chunk, batches = np.random.default_rng(0), Chunk(), []
    for size in (3, 5, 1):
        batch = (random.random((size, 7), np.float32), random.integers(0, 9, size).astype(np.uint8))
        add(chunk, *batch)
        batches.append(batch)
    content = np.frombuffer(b"".join(bytes(piece) for piece in chunk.pieces()), np.uint8)
    blob = one_time(chunk.size_bytes())
    assert content.size == chunk.size_bytes() == blob.size_bytes
    assert chunk.num_bytes == sum(array.nbytes for batch in batches for array in batch)
    arrays = []
    for described in chunk.arrays(blob):
        assert described.offset % 64 == 0
        dtype, shape = np.dtype(described.tensor.dtype), tuple(described.tensor.shape)
        size = int(np.prod(shape)) * dtype.itemsize
        arrays.append(content[described.offset : described.offset + size].view(dtype).reshape(shape))
    for batch, rows in zip(batches, chunk.batches(), strict=True):
        for array, expected in zip(arrays, batch, strict=True):
            np.testing.assert_array_equal(array[np.frombuffer(rows, "<i8")], expected)


def test_batches_of_another_form_go_separately() -> None:
    chunk = Chunk()
    one = np.zeros((2, 3), np.float32)
    assert chunk.takes([spec(one)])
    add(chunk, one)
    assert chunk.takes([spec(np.zeros((9, 3), np.float32))])
    assert not chunk.takes([spec(np.zeros((2, 4), np.float32))])
    assert not chunk.takes([spec(np.zeros((2, 3), np.float64))])
    assert not chunk.takes([spec(one), spec(one)])


def test_names_of_what_serves_once_differ() -> None:
    assert one_time(8).digest != one_time(8).digest
