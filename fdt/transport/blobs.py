"""Bulk data by content: names of blobs, and their bytes in pieces.

A blob is named by its SHA-256 and its size, so the same array is sent once.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fdt.transport import wire
from fdt.v1 import blobs_pb2

if TYPE_CHECKING:
    # The script may set what NumPy reads when it is imported; until then nothing of ours imports it.
    pass

# Anything that `memoryview` takes and that is C-contiguous: bytes, arrays, maps.
Buffer = Any

# Where the store is in a pool's directory.
STORE = "blobs"
CHUNK_BYTES = 1 << 20
# Values up to this size travel in messages themselves; larger ones go through the store, and messages stay far below gRPC's
# 4 MiB.
INLINE_BYTES = 256 * 1024
# Length of the name of a blob that serves once; others have that of a SHA-256.
ONE_TIME_BYTES = 16


def flat(buffer: Buffer) -> memoryview:
    """Returns the bytes of a C-contiguous buffer without copying them."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def reference(buffer: Buffer) -> blobs_pb2.BlobRef:
    """Returns the name of a blob: the SHA-256 of its bytes and their number."""
    view = flat(buffer)
    return blobs_pb2.BlobRef(digest=hashlib.sha256(view).digest(), size_bytes=view.nbytes)


def one_time(size_bytes: int) -> blobs_pb2.BlobRef:
    """Returns a name for a blob that serves once: it says nothing of the content, and nobody looks for it again."""
    return blobs_pb2.BlobRef(digest=os.urandom(ONE_TIME_BYTES), size_bytes=size_bytes)


def chunked(view: memoryview) -> Iterator[memoryview]:
    """Yields slices of at most `CHUNK_BYTES`; none for an empty view."""
    for start in range(0, view.nbytes, CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def describe(ref: blobs_pb2.BlobRef) -> str:
    """Returns a short name for messages."""
    return f"blob={ref.digest.hex()[:12]}… ({ref.size_bytes:,} bytes)"


def encode_data(data: memoryview, field: int) -> bytes:
    """Returns a message whose only field is `data`, as protobuf would, with a single copy."""
    return b"".join((bytes((field << 3 | 2,)), wire.varint(len(data)), data))


def decode_data(raw: bytes, message: Any, field: int) -> memoryview:
    """Returns the field `data` of a chunk, without a copy where it is the only field."""
    data = wire.only_field(raw, field)
    if data is not None:
        return data
    return memoryview(wire.decode(message, raw).data)
