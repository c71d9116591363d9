"""Packs arrays into bytes and unpacks them: states of variables, and outputs of steps.

An array of numbers is packed as its memory; an array of strings as the strings' lengths, int64, and then their bytes.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fdt.errors import ProtocolError
from fdt.program.layout import shares
from fdt.program.step_program import dtype_of, shape_of
from fdt.v1 import job_pb2, program_pb2

_ALIGNMENT_BYTES = 64
_SIZE = np.dtype("<i8")
# Smaller values are not cut: they travel whole at once.
_CUT_BYTES = 8 << 20
# Smaller values travel though they are zero: looking at them, and saying so, is not worth it.
_ZERO_BYTES = 64 << 10
# How many bytes are looked at together.
_LOOK_BYTES = 1 << 20
# TensorFlow's limit.
_MAX_RANK = 254


def as_array(tensor: Any) -> np.ndarray:
    """Returns the value of a tensor or variable; strings as objects, since NumPy's own type drops trailing zero bytes."""
    return np.asarray(tensor.numpy(), object if tensor.dtype.name == "string" else None)


def shared(tensor: Any) -> np.ndarray:
    """Returns a tensor's memory, which must not be written, or a copy where NumPy cannot share it."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError):
        # Strings, and types that NumPy does not have.
        return as_array(tensor)


def content(value: np.ndarray) -> np.ndarray:
    """Returns an array's bytes, uint8 [n]; equal bytes mean equal values."""
    if value.dtype.kind not in "OSU":
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    texts = [text.encode() if isinstance(text, str) else text for text in value.reshape(-1).tolist()]
    lengths = np.array([len(text) for text in texts], _SIZE)
    return np.frombuffer(lengths.tobytes() + b"".join(texts), np.uint8)


def laid_out(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Lays arrays out in the format of job_pb2.State: each array's bytes, with starts rounded up to 64 bytes.

    Returns:
        Pieces, uint8, which share the memory of arrays of numbers.
    """
    pieces = []
    for value in values:
        pieces.append(content(value))
        pieces.append(np.zeros(_padded(pieces[-1].size) - pieces[-1].size, np.uint8))
    return pieces


def pack(values: Sequence[np.ndarray]) -> bytes:
    """Lays arrays out as `laid_out` does, in one piece."""
    return b"".join(piece.data for piece in laid_out(values))


@dataclasses.dataclass(frozen=True)
class Pieces:
    """An array's bytes, made piece by piece.

    Attributes:
        num_bytes: How many there are.
        made: Its pieces in order, uint8 or of any type; read once.
    """

    num_bytes: int
    made: Iterable[np.ndarray]


def in_pieces(values: Sequence[np.ndarray | Pieces]) -> Pieces:
    """Lays arrays out as `pack` does, without a copy of all of them."""
    given = [value if isinstance(value, Pieces) else _one_piece(content(value)) for value in values]

    def made() -> Iterator[np.ndarray]:
        for each in given:
            yield from map(content, each.made)
            yield np.zeros(_padded(each.num_bytes) - each.num_bytes, np.uint8)

    return Pieces(sum(_padded(each.num_bytes) for each in given), made())


def _one_piece(packed: np.ndarray) -> Pieces:
    return Pieces(packed.size, [packed])


def unpack(packed: Any, specs: Sequence[program_pb2.Tensor]) -> list[np.ndarray]:
    """Inverts `pack`; arrays of numbers are views of the input.

    Raises:
        ProtocolError: The length does not fit the descriptions.
    """
    view = np.frombuffer(packed, np.uint8)
    values, start = [], 0
    for spec in specs:
        num_bytes = _num_bytes(view[start:], spec)
        if num_bytes is None or start + num_bytes > view.size:
            break
        values.append(_array(view[start : start + num_bytes], spec))
        start += _padded(num_bytes)
    if len(values) != len(specs) or start != view.size:
        raise ProtocolError(f"A state of {view.size} bytes does not fit its {len(specs)} variables.")
    return values


def joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the array whose rows are those of some arrays, one after the other."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def unpack_state(
    state: job_pb2.State,
    opened: Callable[[int], Any],
    specs: Sequence[program_pb2.Tensor],
    spans: Mapping[int, tuple[int, int]] | None = None,
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yields the values of a state's variables in pieces (see `joined`), with their indices; they are views of the contents.

    Args:
        state: Describes them.
        opened: Returns the content of one of its payloads; called only for payloads that are needed.
        specs: Descriptions of all variables of the program.
        spans: Of some variables the first row and the number of rows that are wanted; other variables are wanted whole.

    Raises:
        ProtocolError: The contents do not fit the descriptions.
    """
    wanted = spans or {}
    if not set(state.zeros) <= set(state.variables):
        raise ProtocolError("A state says of variables that they are zero that it does not have.")
    for i in state.zeros:
        shape = tuple(specs[i].shape)
        yield i, [np.zeros((wanted[i][1], *shape[1:]) if i in wanted else shape, dtype_of(specs[i]))]
    pieces: dict[int, list[np.ndarray]] = {i: [] for rows in state.rows for i in rows.variables}
    elsewhere = {*pieces, *state.zeros}
    whole = [i for i in state.variables if i not in elsewhere]
    for i, value in zip(whole, unpack(opened(0), [specs[i] for i in whole]), strict=True):
        start, count = wanted.get(i, (0, len(value) if value.ndim else 0))
        yield i, [value[start : start + count] if i in wanted else value]
    ends = dict.fromkeys(pieces, 0)
    for place, rows in enumerate(state.rows, 1):
        taken = {}
        for i, count in zip(rows.variables, rows.counts, strict=True):
            start, number = wanted.get(i, (0, specs[i].shape[0]))
            first, end = max(start, ends[i]), min(start + number, ends[i] + count)
            if first < end:
                taken[i] = slice(first - ends[i], end - ends[i])
            ends[i] += count
        if taken:
            values = _rows(rows, opened(place), specs)
            for i, span in taken.items():
                pieces[i].append(values[i][span])
    for i, found in pieces.items():
        if ends[i] != specs[i].shape[0]:
            raise ProtocolError(f"A state has {ends[i]} rows of a variable of {specs[i].shape[0]} rows.")
        yield i, found or [np.zeros((0, *specs[i].shape[1:]), dtype_of(specs[i]))]


def cut_state(values: Mapping[int, np.ndarray], num_parts: int) -> tuple[job_pb2.State, list[list[np.ndarray]]]:
    """Describes variables' values, large ones cut by rows, so that a worker that holds some rows of them reads those alone.

    Of large values that are zero, as an optimizer's moments before the first step, nothing travels.

    Args:
        values: The values by the variables' indices.
        num_parts: For how many workers they are cut.

    Returns:
        The state without its payloads, and the content of each of them (see `laid_out`); these share the values' memory.
    """
    zeros = {i for i, value in values.items() if _is_zero(value)}
    cut = [i for i, value in values.items() if i not in zeros and _is_cut(value, num_parts)]
    state = job_pb2.State(variables=[*values], zeros=zeros)
    elsewhere = zeros.union(cut)
    contents = [laid_out([value for i, value in values.items() if i not in elsewhere])]
    if cut:
        counts = [shares(len(values[i]), num_parts) for i in cut]
        starts = [0] * len(cut)
        for number in range(num_parts):
            rows = state.rows.add(variables=cut, counts=[each[number] for each in counts])
            pieces = zip(cut, starts, rows.counts, strict=True)
            contents.append(laid_out([values[i][start : start + count] for i, start, count in pieces]))
            starts = [start + count for start, count in zip(starts, rows.counts, strict=True)]
    return state, contents


def _is_zero(value: np.ndarray) -> bool:
    if value.nbytes < _ZERO_BYTES or value.dtype.kind in "OSU":
        return False
    packed = content(value)
    words = packed[: packed.size // 8 * 8].view(np.uint64)
    step = _LOOK_BYTES // 8
    looked_at = (words[start : start + step] for start in range(0, words.size, step))
    return not packed[words.nbytes :].any() and not any(np.bitwise_or.reduce(each) for each in looked_at)


def _is_cut(value: np.ndarray, num_parts: int) -> bool:
    return num_parts > 1 and value.nbytes >= _CUT_BYTES and value.ndim > 0 and len(value) >= num_parts


def _rows(rows: job_pb2.Rows, packed: Any, specs: Sequence[program_pb2.Tensor]) -> dict[int, np.ndarray]:
    described = [
        program_pb2.Tensor(dtype=specs[i].dtype, shape=[count, *specs[i].shape[1:]])
        for i, count in zip(rows.variables, rows.counts, strict=True)
    ]
    return dict(zip(rows.variables, unpack(packed, described), strict=True))


def _num_bytes(view: np.ndarray, spec: program_pb2.Tensor) -> int | None:
    """Returns how many bytes a tensor takes at the beginning of a view; None if the view is too short to tell."""
    count = math.prod(spec.shape)
    if spec.dtype != "string":
        return count * dtype_of(spec).itemsize
    end = count * _SIZE.itemsize
    if end > view.size:
        return None
    lengths = view[:end].view(_SIZE)
    # Check each length, so that the sum of wrong ones cannot overflow.
    return end + int(lengths.sum()) if all(0 <= length <= view.size for length in lengths.tolist()) else None


def _array(view: np.ndarray, spec: program_pb2.Tensor) -> np.ndarray:
    shape = tuple(spec.shape)
    if spec.dtype != "string":
        return view.view(dtype_of(spec)).reshape(shape)
    count = math.prod(shape)
    ends = itertools.accumulate(view[: count * _SIZE.itemsize].view(_SIZE).tolist())
    texts, start = view[count * _SIZE.itemsize :].tobytes(), 0
    array = np.empty(count, object)
    for place, end in enumerate(ends):
        array[place], start = texts[start:end], end
    return array.reshape(shape)


def pack_outputs(values: Sequence[np.ndarray], described: Sequence[program_pb2.Tensor]) -> bytes:
    """Lays a step's outputs out as `pack` does, after the shapes of outputs whose description has an unknown one.

    A shape is its rank and its sizes, int64.
    """
    shapes = [_shape(value) for value, spec in zip(values, described, strict=True) if _is_open(spec)]
    return pack([np.concatenate(shapes), *values] if shapes else values)


def unpack_outputs(packed: Any, described: Sequence[program_pb2.Tensor]) -> list[np.ndarray]:
    """Inverts `pack_outputs`; the arrays are views of the input.

    Raises:
        ProtocolError: The input does not fit the descriptions.
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
    """Returns zeros (or empty strings) of a tensor's shape, with size 0 for unknown sizes."""
    shape = shape_of(described)
    sizes = [0] if shape.rank is None else [size or 0 for size in shape.as_list()]
    return neutral(np.zeros(sizes, dtype_of(described)))


def neutral(like: np.ndarray) -> np.ndarray:
    """Returns an array of zeros, or of empty strings, with the shape and type of another."""
    return np.full(like.shape, b"", object) if like.dtype.kind in "OSU" else np.zeros_like(like)


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
