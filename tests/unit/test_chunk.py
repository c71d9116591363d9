"""Batches that travel together lie row after row, and every array where its description says."""

import numpy as np

from fdt.client.chunk import Chunk
from fdt.transport.blobs import one_time
from fdt.v1 import program_pb2


def spec(array: np.ndarray) -> program_pb2.Tensor:
    return program_pb2.Tensor(name="array", dtype=array.dtype.name, shape=array.shape)


def add(chunk: Chunk, *arrays: np.ndarray) -> None:
    chunk.add([a.reshape(-1).view(np.uint8) for a in arrays], [spec(a) for a in arrays])


def read_back(chunk: Chunk) -> list[list[np.ndarray]]:
    """Returns the batches of a chunk, read as a worker reads them."""
    content = np.frombuffer(b"".join(bytes(piece) for piece in chunk.pieces()), np.uint8)
    blob = one_time(chunk.size_bytes())
    assert content.size == chunk.size_bytes() == blob.size_bytes
    arrays = []
    for described, inside in zip(chunk.within(blob).arrays, chunk.inside().arrays, strict=True):
        assert described.offset % 64 == 0
        dtype, shape = np.dtype(described.tensor.dtype), tuple(described.tensor.shape)
        size = int(np.prod(shape)) * dtype.itemsize
        arrays.append(content[described.offset : described.offset + size].view(dtype).reshape(shape))
        assert inside.content == arrays[-1].tobytes() and inside.tensor == described.tensor
    each, begins, batches = len(arrays) // num_groups(chunk), [0] * num_groups(chunk), []
    for batch in chunk.batches():
        begin, of_group = begins[batch.group], arrays[batch.group * each : (batch.group + 1) * each]
        begins[batch.group] += batch.following
        batches.append([array[begin : begin + batch.following] for array in of_group])
    return batches


def num_groups(chunk: Chunk) -> int:
    return int(chunk.inside().groups)


def test_a_batch_is_found_by_its_group_and_rows() -> None:
    random, chunk, batches = np.random.default_rng(0), Chunk(), []
    for size, length in ((3, 7), (5, 7), (1, 2), (4, 7), (2, 0)):
        batch = (random.random((size, length), np.float32), random.integers(0, 9, size).astype(np.uint8))
        add(chunk, *batch)
        batches.append(batch)
    assert len(chunk) == 5 and num_groups(chunk) == 4
    assert chunk.num_bytes == sum(array.nbytes for batch in batches for array in batch)
    for batch, found in zip(batches, read_back(chunk), strict=True):
        for expected, array in zip(batch, found, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_batches_of_the_same_form_are_of_one_group() -> None:
    one = np.zeros((2, 3), np.float32)
    others = {
        "more rows": (np.zeros((9, 3), np.float32),),
        "longer rows": (np.zeros((2, 4), np.float32),),
        "of another type": (np.zeros((2, 3), np.float64),),
    }
    groups = {}
    for name, batch in others.items():
        chunk = Chunk()
        add(chunk, one)
        add(chunk, *batch)
        groups[name] = num_groups(chunk)
    assert groups == {"more rows": 1, "longer rows": 2, "of another type": 2}


def test_names_of_what_serves_once_differ() -> None:
    assert one_time(8).digest != one_time(8).digest
