"""Arrays as bytes, one after the other, and back: states of variables, and what steps return."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fdt.errors import ProtocolError
from fdt.program import dtype_of, shape_of
from fdt.v1 import program_pb2

_ALIGNMENT_BYTES = 64
_SIZE = np.dtype("<i8")
# TensorFlow's.
_MAX_RANK = 254


def pack(values: Sequence[np.ndarray]) -> bytearray:
    """Lays arrays out as job_pb2.State wants them: raw bytes, each start rounded up to 64 bytes."""
    sizes = [_padded(value.nbytes) for value in values]
    packed = bytearray(sum(sizes))
    view = np.frombuffer(packed, np.uint8)
    start = 0
    for value, size in zip(values, sizes, strict=True):
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        view[start : start + value.nbytes] = flat
        start += size
    return packed


def unpack(packed: Any, specs: Sequence[program_pb2.Tensor]) -> list[np.ndarray]:
    """Reads what `pack` wrote; the arrays are views of it.

    Raises:
        ProtocolError: The length does not fit the descriptions.
    """
    view = np.frombuffer(packed, np.uint8)
    values, start = [], 0
    for spec in specs:
        dtype, shape = dtype_of(spec), tuple(spec.shape)
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if start + num_bytes > view.size:
            break
        values.append(view[start : start + num_bytes].view(dtype).reshape(shape))
        start += _padded(num_bytes)
    if len(values) != len(specs) or start != view.size:
        raise ProtocolError(f"A state of {view.size} bytes does not fit its {len(specs)} variables.")
    return values


def pack_outputs(values: Sequence[np.ndarray], described: Sequence[program_pb2.Tensor]) -> bytes:
    """Lays a step's outputs out as `pack` does, led by the shapes of those whose description leaves one open.

    A shape is its rank and its sizes, int64.
    """
    shapes = [_shape(value) for value, spec in zip(values, described, strict=True) if _is_open(spec)]
    return bytes(pack([np.concatenate(shapes), *values] if shapes else values))


def unpack_outputs(packed: Any, described: Sequence[program_pb2.Tensor]) -> list[np.ndarray]:
    """Reads what `pack_outputs` wrote; the arrays are views of it.

    Raises:
        ProtocolError: It does not fit the descriptions.
    """
    view, specs, start = np.frombuffer(packed, np.uint8), list(described), 0
    for number, spec in enumerate(described):
        if _is_open(spec):
            rank = _sizes(view, start, 1)[0]
            shape = _sizes(view, start + _SIZE.itemsize, rank)
            start += (1 + rank) * _SIZE.itemsize
            specs[number] = program_pb2.Tensor(dtype=spec.dtype, shape=shape)
    return unpack(view[_padded(start) :], specs)


def empty(described: program_pb2.Tensor) -> np.ndarray:
    """Returns zeros of a tensor's shape; where that is open, without a row."""
    shape = shape_of(described)
    sizes = [0] if shape.rank is None else [size or 0 for size in shape.as_list()]
    return np.zeros(sizes, dtype_of(described))


def _is_open(described: program_pb2.Tensor) -> bool:
    return any(size < 0 for size in described.shape)


def _shape(value: np.ndarray) -> np.ndarray:
    return np.array([value.ndim, *value.shape], _SIZE)


def _sizes(view: np.ndarray, start: int, count: int) -> list[int]:
    end = start + count * _SIZE.itemsize
    if end > view.size or count > _MAX_RANK:
        raise ProtocolError(f"Outputs of {view.size} bytes end before the shapes that lead them.")
    sizes: list[int] = view[start:end].view(_SIZE).tolist()
    if any(size < 0 for size in sizes):
        raise ProtocolError(f"Outputs come with the shape {sizes}; expected sizes of zero and more.")
    return sizes


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
