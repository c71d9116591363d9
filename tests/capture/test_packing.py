"""Arrays as bytes and back, and what does not fit its description."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdt.errors import ProtocolError
from fdt.program.layout import shares
from fdt.program.packing import (
    Pieces,
    content,
    cut_state,
    empty,
    in_pieces,
    joined,
    pack,
    pack_outputs,
    unpack,
    unpack_outputs,
    unpack_state,
)
from fdt.v1 import job_pb2, program_pb2


def test_pack_and_unpack_are_inverse() -> None:
    values = [
        np.arange(n, dtype=d).reshape(s)
        for n, d, s in [(6, "f4", (2, 3)), (1, "i8", ()), (0, "f2", (0, 4)), (65, "u1", (65,))]
    ]
    specs = [program_pb2.Tensor(dtype=v.dtype.name, shape=v.shape) for v in values]
    packed = pack(values)
    assert len(packed) % 64 == 0
    for value, back in zip(values, unpack(packed, specs), strict=True):
        assert value.dtype == back.dtype
        np.testing.assert_array_equal(value, back)
    for wrong in (packed[:-64], packed + bytes(64)):
        with pytest.raises(ProtocolError):
            unpack(wrong, specs)


def test_strings() -> None:
    values = [
        np.array([[b"one", b""], ["zwei\u00fc".encode(), b"ends in zeros\0\0"]], object),
        np.array(b"scalar\0", object),
        np.empty([0, 2], object),
        np.arange(3, dtype="f4"),
    ]
    specs = [program_pb2.Tensor(dtype="float32" if v.dtype == "f4" else "string", shape=v.shape) for v in values]
    packed = pack(values)
    for value, back in zip(values, unpack(packed, specs), strict=True):
        assert (value.dtype, value.shape) == (back.dtype, back.shape)
        assert value.tolist() == back.tolist()
    # Strings are equal by what they say, not by where they are.
    assert np.array_equal(content(values[0]), content(np.array(values[0].tolist(), object)))
    lengths = bytearray(packed)
    lengths[7] = 0x7F
    for wrong in (packed[:-64], packed + bytes(64), packed[:16], lengths):
        with pytest.raises(ProtocolError):
            unpack(wrong, specs)


def test_outputs_whose_shapes_are_open() -> None:
    described = [program_pb2.Tensor(dtype="float32", shape=shape) for shape in ([], [-1, 3], [-2], [2], [-2], [-1])]
    values = [np.ones(shape, np.float32) for shape in ((), (4, 3), (1, 2, 3), 2, (), 0)]
    packed = pack_outputs(values, described)
    for value, back in zip(values, unpack_outputs(packed, described), strict=True):
        assert (value.shape, value.dtype) == (back.shape, back.dtype)
        np.testing.assert_array_equal(value, back)
    lengths = range(0, len(packed), 8)
    header = np.frombuffer(packed, "<i8").copy()
    header[0] = -1
    for wrong in [*(packed[:n] for n in lengths), packed + bytes(64), header.tobytes()]:
        with pytest.raises(ProtocolError):
            unpack_outputs(wrong, described)


def test_outputs_of_no_step() -> None:
    described = [program_pb2.Tensor(dtype="float32", shape=shape) for shape in ([2], [-1, 3], [-2])]
    assert [empty(each).shape for each in described] == [(2,), (0, 3), (0,)]
    assert empty(program_pb2.Tensor(dtype="string", shape=[2])).tolist() == [b"", b""]


def test_pieces_make_the_same_bytes() -> None:
    whole = np.arange(200, dtype="float32").reshape(50, 4)
    texts = np.array([b"one", b"", b"three"], object)
    made = in_pieces([texts, Pieces(whole.nbytes, [whole[:7], whole[7:7], whole[7:]]), np.float64(3)])
    assert b"".join(bytes(piece) for piece in made.made) == bytes(pack([texts, whole, np.float64(3)]))
    assert made.num_bytes == len(pack([texts, whole, np.float64(3)]))


@given(data=st.data())
def test_rows_of_several_workers_are_one_value_and_only_what_is_wanted_is_opened(data: st.DataObject) -> None:
    """A table of rows and a scalar; the rows lie with some workers, of whom some have none."""
    counts = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5), "rows of each worker")
    table, number = np.arange(3.0 * sum(counts)).reshape(-1, 3), np.float64(7)
    specs = [program_pb2.Tensor(dtype="float64", shape=shape) for shape in (table.shape, ())]
    ends = np.cumsum(counts)
    contents = [pack([number]), *(pack([table[end - count : end]]) for end, count in zip(ends, counts, strict=True))]
    state = job_pb2.State(variables=[1, 0], rows=[job_pb2.Rows(variables=[0], counts=[count]) for count in counts])
    start = data.draw(st.integers(0, len(table)), "first row")
    wanted = data.draw(st.integers(0, len(table) - start), "number of rows")
    opened = list[int]()

    def open_(place: int) -> bytes:
        opened.append(place)
        return contents[place]

    found = {i: joined(p) for i, p in unpack_state(state, open_, specs, {0: (start, wanted)})}
    assert found[1] == number
    assert np.array_equal(found[0], table[start : start + wanted])
    needed = [
        i
        for i, (end, count) in enumerate(zip(ends, counts, strict=True), 1)
        if max(end - count, start) < min(end, start + wanted)
    ]
    assert opened == [0, *needed]
    assert np.array_equal(joined(dict(unpack_state(state, contents.__getitem__, specs))[0]), table)
    if counts[0]:
        del state.rows[0]
        with pytest.raises(ProtocolError, match=r"rows of a variable|does not fit"):
            dict(unpack_state(state, contents.__getitem__, specs))


@given(num_rows=st.integers(0, 20), num_parts=st.integers(1, 5))
def test_a_worker_opens_its_own_rows_of_large_values_and_those_that_are_whole(num_rows: int, num_parts: int) -> None:
    table = np.broadcast_to(np.arange(1.0, num_rows + 1.0)[:, None], (num_rows, 1 << 18))
    values = {2: np.arange(3.0), 0: table, 5: np.array([b"text"], object)}
    specs = [program_pb2.Tensor(dtype="float64", shape=(1,)) for _ in range(6)]
    for i, value in values.items():
        specs[i] = program_pb2.Tensor(dtype="string" if i == 5 else "float64", shape=value.shape)
    state, contents = cut_state(values, num_parts)
    assert list(state.variables) == [2, 0, 5]
    packed = [b"".join(bytes(piece) for piece in pieces) for pieces in contents]
    is_cut = num_parts > 1 and table.nbytes >= 8 << 20 and num_rows >= num_parts
    assert len(packed) == (1 + num_parts if is_cut else 1)
    start = 0
    for rank, count in enumerate(shares(num_rows, num_parts)):
        opened = list[int]()

        def open_(place: int, opened: list[int] = opened) -> bytes:
            opened.append(place)
            return packed[place]

        found = {i: joined(pieces) for i, pieces in unpack_state(state, open_, specs, {0: (start, count)})}
        assert opened == ([0, 1 + rank] if is_cut else [0])
        assert np.array_equal(found[0], table[start : start + count])
        assert np.array_equal(found[2], values[2]) and found[5].tolist() == [b"text"]
        start += count
    assert np.array_equal(joined(dict(unpack_state(state, packed.__getitem__, specs))[0]), table)


@pytest.mark.parametrize("last", [0.0, -0.0, 1.0, float("nan")])
def test_of_large_zeros_nothing_travels(last: float) -> None:
    """A negative zero is none: its sign is kept."""
    large = np.zeros((1 << 14) + 1, np.float32)
    large[-1] = last
    values: dict[int, np.ndarray] = {0: large, 1: np.zeros(3)}
    specs = [program_pb2.Tensor(dtype=str(value.dtype), shape=value.shape) for value in values.values()]
    state, contents = cut_state(values, 2)
    packed = [b"".join(bytes(piece) for piece in pieces) for pieces in contents]
    is_zero = last == 0 and not np.signbit(last)
    assert [*state.zeros] == [0] * is_zero
    assert (len(packed[0]) < large.nbytes) == is_zero
    found = {i: joined(pieces) for i, pieces in unpack_state(state, packed.__getitem__, specs)}
    assert all(found[i].tobytes() == value.tobytes() for i, value in values.items())
    (wanted,) = dict(unpack_state(state, packed.__getitem__, specs, {0: (5, 7)}))[0]
    assert wanted.tobytes() == large[5:12].tobytes()
