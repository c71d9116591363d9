"""Rules for slices, and for joins along the divided dimension: each worker keeps those of its entries that are selected."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division.conversions import taken
from fdt.division.slice_shapes import picked
from fdt.division.walker import Node, for_divided
from fdt.program.body import Wire
from fdt.program.layout import Divided, joined, shares
from fdt.program.size import Dim, is_number
from fdt.program.value import Value

Shape = tuple[Dim | None, ...]


def _of_own(
    node: Node, data: int, layout: Divided, begin: int, end: Dim, stride: int = 1
) -> tuple[Divided, tuple[Wire, ...]]:
    """Returns the layout and each worker's tensor of the entries that a slice takes along the divided dimension."""
    if (begin, end, stride) == (0, layout.size, 1):
        return layout, node.own(data)
    # Which worker has an entry decides how the step is written.
    layout = layout.fixed()
    after, picks = layout.picked(begin, int(end), stride)
    key = "taken", layout, begin, end, stride
    (own,) = node.walk.computed(
        lambda rank, tensor: taken(tensor, layout.dim, picks[rank], stride), [node.inputs[data]], key
    )
    return after, own


def _put_back(
    node: Node, parts: Value, size: Dim, begin: int, end: Dim, stride: int
) -> tuple[Divided, tuple[Wire, ...]] | None:
    """Returns the layout and each worker's tensor of a slice's gradient: zeros, with the entries at the places of the slice.

    None if no known layout of the whole tensor gives the entries' layout when sliced.
    """
    given = parts.layout
    assert isinstance(given, Divided)
    dim = given.dim
    for likely in node.walk.likely(size):
        whole = likely.at(dim).fixed()
        after, picks = whole.picked(begin, int(end), stride)
        if after == given.fixed():
            spread = partial(_spread, dim, whole, picks, stride)
            return whole, node.walk.computed(spread, [parts], ("spread", whole, begin, end, stride))[0]
    return None


def _spread(
    dim: int, whole: Divided, all_picks: Sequence[Sequence[tuple[Any, Any]]], stride: int, rank: int, tensor: tf.Tensor
) -> tf.Tensor:
    """Puts a worker's entries back into its blocks."""
    sizes, picks = [block[rank] for block in whole.each], all_picks[rank]
    blocks, before = [], 0
    pieces = tf.split(tensor, [count for _, count in picks], dim)
    for size, (first, count), piece in zip(sizes, picks, pieces, strict=True):
        shape = tf.shape(piece)
        blocks.append(
            tf.raw_ops.StridedSliceGrad(
                shape=tf.concat([shape[:dim], [size], shape[dim + 1 :]], 0),
                begin=[0] * dim + [first - before],
                end=[0] * dim + [first - before + count * stride],
                strides=[1] * dim + [stride],
                dy=piece,
                begin_mask=(1 << dim) - 1,
                end_mask=(1 << dim) - 1,
            )
            if count
            else tf.zeros(tf.concat([shape[:dim], [size], shape[dim + 1 :]], 0), piece.dtype)
        )
        before += size
    return blocks[0] if len(blocks) == 1 else tf.concat(blocks, dim)


# ---- joins ----------------------------------------------------------------------------------------------------------


def put_together(node: Node, along: int) -> list[Value] | None:
    """ConcatV2 along the divided dimension."""
    values = node.inputs[:-1]
    divided = [v for v in values if isinstance(v.layout, Divided) and v.layout.dim == along]
    rest = [v for v in values if v not in divided]
    # If most of it is whole, exchanging the divided rest is cheaper.
    if not divided or sum(v.num_bytes for v in rest) >= sum(v.num_bytes for v in divided):
        return None
    lengths = [(v.shape or (None,) * (along + 1))[along] for v in values]
    if any(isinstance(v.layout, Divided) for v in rest) or any(length is None for length in lengths):
        return None
    num_workers = node.walk.exchange.num_workers
    layouts = [
        v.layout if isinstance(v.layout, Divided) else Divided(along, shares(int(length or 0), num_workers))
        for v, length in zip(values, lengths, strict=True)
    ]
    together = joined(along, [block for layout in layouts for block in layout.each])
    node.walk.joined[together.size] = together.at(0)
    inputs = [node.local(i, layout) for i, layout in enumerate(layouts)]
    return node.run([*inputs, node.whole(len(values))], together)


def parted(node: Node, data: int, layout: Divided) -> list[Value] | None:
    """Split and SplitV along the divided dimension."""
    count = len(node.op.outputs)
    sizes = node.constant(1) if node.op.type == "SplitV" else np.full(count, int(layout.size) // count)
    if sizes is None:
        return None
    lengths = [int(size) for size in sizes]
    if -1 in lengths:
        lengths[lengths.index(-1)] = int(layout.size) - sum(lengths) - 1
    values, begin = [], 0
    for place, length in enumerate(lengths):
        after, own = _of_own(node, data, layout, begin, begin + length)
        values.append(node.value(after, own, place))
        begin += length
    return values


def padded(node: Node, layout: Divided, paddings: np.ndarray) -> list[Value] | None:
    """Pad along the divided dimension."""
    before, after = (int(count) for count in paddings[layout.dim])
    if node.op.type != "Pad" or before < 0 or after < 0:
        return None
    size = before + layout.size + after
    found = _put_back(node, node.inputs[0], size, before, before + layout.size, 1)
    if found is None:
        return None
    whole, parts = found
    others = paddings.copy()
    others[whole.dim] = 0
    return node.run([parts, node.constants(1, lambda _: others.tolist())], whole)


@for_divided(linear=True)
def plain(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Slice."""
    begin, sizes, dim = node.constant(1), node.constant(2), layout.dim
    if begin is None or sizes is None:
        return None
    end = layout.size if is_number(sizes[dim]) and sizes[dim] == -1 else begin[dim] + sizes[dim]
    after, own = _of_own(node, 0, layout, int(begin[dim]), end)
    others, wanted = begin.copy(), sizes.copy()
    others[dim], wanted[dim] = 0, -1
    return node.run([own, node.constants(1, lambda _: others), node.constants(2, lambda _: wanted)], after)


# ---- strided slices -------------------------------------------------------------------------------------------------


@for_divided(linear=True)
def strided(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """StridedSlice: with positive strides along the divided dimension; other dimensions may change in any way."""
    changes = picked(node, 1, len(shape))
    kept = [each for each in changes or () if each[1] != "gone"]
    place = next((i for i, (dim, _) in enumerate(kept) if dim == layout.dim), None)
    if place is None:
        return None
    begin, end, stride = _range(node, kept[place][1], layout.size)
    if stride < 1:
        return None
    after, own = _of_own(node, 0, layout, begin, end, stride)
    inputs = [own, node.whole(1), node.whole(2), _strides(node, kept[place][1])]
    return node.run(inputs, after.at(place), **_by_masks(node, kept[place][1]))


def _range(node: Node, what: Any, size: Dim) -> tuple[int, Dim, int]:
    """Returns begin, end and stride of the entries that are taken from a dimension."""
    if what == "kept":
        return 0, size, 1
    begin, end, stride, i = what
    first, last, _ = slice(
        None if node.attr("begin_mask") >> i & 1 else begin, None if node.attr("end_mask") >> i & 1 else end, stride
    ).indices(int(size))
    return first, max(first, last), stride


@for_divided(4, linear=True)
def strided_gradient(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """StridedSliceGrad(shape, begin, end, strides, dy)."""
    whole = node.constant(0)
    changes = None if whole is None else picked(node, 1, len(whole))
    if whole is None or changes is None:
        return None
    dim, what = [each for each in changes if each[1] != "gone"][layout.dim]
    if dim < 0:
        return None
    begin, end, stride = _range(node, what, whole[dim])
    if stride < 1:
        return None
    given = layout.at(dim)
    inputs = [node.own_shapes(0, whole, given), node.whole(1), node.whole(2), _strides(node, what), node.own(4)]
    (value,) = node.run(inputs, given, **_by_masks(node, what))
    if (begin, end, stride) == (0, whole[dim], 1):
        return [value]
    value.shape = tuple(given.size if d == dim else size for d, size in enumerate(whole))
    found = _put_back(node, value, whole[dim], begin, end, stride)
    return None if found is None else [node.value(*found)]


def _strides(node: Node, what: Any) -> tuple[Wire, ...]:
    strides = node.constant(3)
    assert strides is not None
    ones = strides.copy()
    if what != "kept":
        ones[what[3]] = 1
    return node.constants(3, lambda _: ones)


def _by_masks(node: Node, what: Any) -> dict[str, int]:
    """Returns attributes that make a slice take all of a dimension, whose entries were selected before."""
    if what == "kept":
        return {}
    return {name: int(node.attr(name)) | 1 << what[3] for name in ("begin_mask", "end_mask")}


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {"Slice": plain, "StridedSlice": strided, "StridedSliceGrad": strided_gradient}
