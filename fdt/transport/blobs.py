"""Names blobs by their content, and splits their bytes into pieces.

A blob is named by its SHA-256 and its size, so equal arrays are sent once.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from fdt.transport import wire
from fdt.v1 import blobs_pb2, job_pb2

# Any C-contiguous object that `memoryview` accepts: bytes, arrays, maps.
Buffer = Any

# The store's folder in a pool's directory.
STORE = "blobs"
CHUNK_BYTES = 1 << 20
# Values up to this size travel inside messages; larger ones go through the store, so that messages stay far below gRPC's limit
# of 4 MiB.
INLINE_BYTES = 256 * 1024
# Length of the name of a one-time blob; other names have the length of a SHA-256.
ONE_TIME_BYTES = 16


def flat(buffer: Buffer) -> memoryview:
    """Returns the bytes of a C-contiguous buffer without copying them."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def reference(buffer: Buffer) -> blobs_pb2.BlobRef:
    """Returns the name of a blob: the SHA-256 of its bytes and their number."""
    view = flat(buffer)
    return blobs_pb2.BlobRef(digest=hashlib.sha256(view).digest(), size_bytes=view.nbytes)


def read_by(run: job_pb2.RunSteps) -> list[blobs_pb2.BlobRef]:
    """Returns the names of the blobs with row numbers of steps, messages within `run`, in order."""
    return [batch.blob for batch in run.batches if batch.HasField("blob")]


def streamed_by(run: job_pb2.RunSteps) -> list[blobs_pb2.BlobRef]:
    """Returns the names of the blobs of a chunk's arrays, messages within `run`, in order."""
    return [array.blob for array in run.chunk.arrays if array.HasField("blob")]


def named_by(bind: job_pb2.BindData) -> list[blobs_pb2.BlobRef]:
    """Returns the names of all blobs that a data set is made of, messages within `bind`, in order."""
    named = [array.blob for array in bind.arrays]
    if bind.HasField("read"):
        read = bind.read
        named += [read.function, *(array.blob for array in read.sizes)]
        named += [read.records.file.blob, read.records.offset.blob] if read.HasField("records") else []
        named += [read.records.length.blob] if read.records.HasField("length") else []
    return named


def payloads_of(state: job_pb2.State) -> list[blobs_pb2.Payload]:
    """Returns a state's contents, messages within it: its whole variables, then each worker's rows."""
    return [state.payload, *(rows.payload for rows in state.rows)]


def holding(state: job_pb2.State) -> list[blobs_pb2.BlobRef]:
    """Returns the names of the blobs with a state's contents, messages within `state`, in order."""
    return [payload.blob for payload in payloads_of(state) if payload.HasField("blob")]


def one_time(size_bytes: int) -> blobs_pb2.BlobRef:
    """Returns a random name for a one-time blob: it does not depend on the content, and is never looked up again."""
    return blobs_pb2.BlobRef(digest=os.urandom(ONE_TIME_BYTES), size_bytes=size_bytes)


def chunked(view: memoryview) -> Iterator[memoryview]:
    """Yields slices of at most `CHUNK_BYTES`; none for an empty view."""
    for start in range(0, view.nbytes, CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def describe(ref: blobs_pb2.BlobRef) -> str:
    """Returns a short name for messages."""
    return f"blob={ref.digest.hex()[:12]}… ({ref.size_bytes:,} bytes)"


def encode_data(data: memoryview, field: int) -> bytes:
    """Returns a serialised message whose only field is `data`, with a single copy."""
    return b"".join((bytes((field << 3 | 2,)), wire.varint(len(data)), data))


def decode_data(raw: bytes, message: Any, field: int) -> memoryview:
    """Returns the field `data` of a chunk, without a copy where it is the only field."""
    data = wire.only_field(raw, field)
    if data is not None:
        return data
    return memoryview(wire.decode(message, raw).data)
