"""Reads, writes and assigns state, maps arrays as tensors, and derives workers' seeds, for both engines."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.base.native import optional
from fdt.errors import ProtocolError
from fdt.program import variable_value
from fdt.program.packing import Pieces, in_pieces, joined, shared, unpack_state
from fdt.program.step_program import dtype_of
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import payloads_of
from fdt.v1 import blobs_pb2, job_pb2, program_pb2

_ALIGNMENT_BYTES = 64
# Sets the seeds of workers far apart (2^32 divided by the golden ratio).
_SEED_STRIDE = 0x9E3779B1
# A variable gets so many bytes at a time.
_ASSIGNED_BYTES = 8 << 20
_ASSIGNED_TYPES = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)


def state_values(
    blobs: BlobStore,
    source: program_pb2.StepProgram,
    state: job_pb2.State,
    spans: Mapping[int, tuple[int, int]] | None = None,
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yields a State's values in pieces, with the variables' indices; see `unpack_state`."""
    payloads = payloads_of(state)

    def opened(place: int) -> Any:
        payload = payloads[place]
        return blobs.open(payload.blob) if payload.HasField("blob") else payload.inline

    return unpack_state(state, opened, [variable.tensor for variable in source.variables], spans)


def assign(variable: tf.Variable, pieces: Sequence[np.ndarray], wait: Callable[[], object] | None = None) -> None:
    """Assigns a value that comes in pieces (see `joined`) to a variable.

    TensorFlow copies what it assigns, so a large value is assigned some rows at a time.

    Args:
        variable: On a CPU, of this host or another.
        pieces: The value.
        wait: Waits until the variable's host has run what it was sent; None for this process's own.
    """
    large = sum(piece.nbytes for piece in pieces) > _ASSIGNED_BYTES and pieces[0].ndim > 0 and _has_rows(variable)
    if not large or (native := optional("fdt.program.update")) is None:
        variable_value.write(variable, joined(pieces))
        return
    start = 0
    for piece in pieces:
        step = max(1, _ASSIGNED_BYTES * len(piece) // max(1, piece.nbytes))
        for begin in range(0, len(piece), step):
            rows = tf.constant(piece[begin : begin + step], variable.dtype)
            native.ops.fdt_assign_rows(variable=variable.handle, rows=rows, start=start)
            start += int(rows.shape[0])
            if wait is not None:
                wait()


def _has_rows(variable: tf.Variable) -> bool:
    """Whether its rows can be assigned where it is."""
    return "CPU" in variable.device and variable.dtype.name in _ASSIGNED_TYPES


def as_state(blobs: BlobStore, values: Mapping[int, np.ndarray | Pieces]) -> job_pb2.State:
    """Returns a State with these values, by the variables' indices; large ones are written to the store piece by piece."""
    indices = sorted(values)
    return job_pb2.State(variables=indices, payload=_payload(blobs, [values[i] for i in indices]))


def as_rows(blobs: BlobStore, parts: Mapping[int, tf.Variable]) -> job_pb2.Rows:
    """Returns the rows of variables that a worker holds, by the whole variables' indices; see `as_state`."""
    indices = sorted(parts)
    counts = [parts[i].shape[0] for i in indices]
    pieces = [Pieces(parts[i].dtype.size * parts[i].shape.num_elements(), _read(parts[i])) for i in indices]
    return job_pb2.Rows(variables=indices, counts=counts, payload=_payload(blobs, pieces))


def _read(variable: tf.Variable) -> Iterator[np.ndarray]:
    # Later, so that no two variables are copied at once that NumPy cannot share.
    yield shared(variable_value.read(variable))


def _payload(blobs: BlobStore, values: Sequence[np.ndarray | Pieces]) -> blobs_pb2.Payload:
    packed = in_pieces(values)
    return blobs.payload_of(packed.num_bytes, packed.made)


def bound_arrays(blobs: BlobStore, arrays: Sequence[job_pb2.Array]) -> list[tf.Tensor]:
    """Returns tensors over the arrays' mapped bytes; workers of one host share the pages. What is inside messages is copied."""
    # The arrays of a chunk share a blob.
    opened = {array.blob.digest: blobs.open(array.blob) for array in arrays if array.HasField("blob")}
    # A GPU gets a step's rows, not all of the data.
    with tf.device("/cpu:0"):
        return [
            _tensor(opened[array.blob.digest], array) if array.HasField("blob") else _copied(array) for array in arrays
        ]


def _copied(described: job_pb2.Array) -> tf.Tensor:
    dtype, shape = dtype_of(described.tensor), tuple(described.tensor.shape)
    if math.prod(shape) * dtype.itemsize != len(described.content):
        raise ProtocolError(
            f"An array has other bytes than its shape says. Received: shape={shape}, dtype={dtype}, "
            f"{len(described.content)} bytes"
        )
    return tf.constant(np.frombuffer(described.content, dtype).reshape(shape))


def _tensor(content: np.ndarray, described: job_pb2.Array) -> tf.Tensor:
    dtype, shape = dtype_of(described.tensor), tuple(described.tensor.shape)
    size = math.prod(shape) * dtype.itemsize
    if described.offset % _ALIGNMENT_BYTES or described.offset + size > content.size:
        raise ProtocolError(
            f"An array does not lie in its blob. Received: shape={shape}, dtype={dtype}, offset={described.offset}, "
            f"size_bytes={content.size}"
        )
    array = content[described.offset : described.offset + size].view(dtype).reshape(shape)
    if array.dtype == tf.bfloat16.as_numpy_dtype and array.size:
        # NumPy has no bfloat16 for DLPack, so pass the memory as 16-bit integers.
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(array.view(np.uint16).__dlpack__()), tf.bfloat16)
    # TensorFlow cannot share the memory of these, only copy it.
    if array.dtype == np.bool_ or array.size == 0 or array.dtype.isbuiltin != 1:
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def worker_seed(state: np.ndarray, worker: int) -> np.ndarray:
    """Returns a SeedGenerator's state [seed, counter] for another worker: the same counter, a seed far away."""
    if worker == 0:
        return state
    moved = state.copy()
    flat = moved.reshape(-1)
    limit = 2**31 if flat.dtype.kind == "i" else 2**32
    flat[0] = (int(flat[0]) + worker * _SEED_STRIDE) % limit
    return moved
