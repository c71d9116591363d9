"""Rules for operations that move entries about: shapes, slices, joins."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division.layout import PARTIAL, WHOLE, Divided
from fdt.division.value import Value
from fdt.division.walker import Node, Rule, for_divided

Shape = tuple[int | None, ...]


def _known(shape: Sequence[int | None] | None) -> tuple[int, ...] | None:
    if shape is None or any(size is None for size in shape):
        return None
    return tuple(int(size) for size in shape if size is not None)


# ---- what is asked of a shape is asked of the whole tensor ----------------------------------------------------------


def shape(node: Node) -> list[Value] | None:
    """Shape and ShapeN: the whole tensor's."""
    values = []
    for value, output in zip(node.inputs, node.op.outputs, strict=True):
        known = _known(value.shape)
        if known is None:
            return _shape_when_it_runs(node)
        values.append(Value(WHOLE, node.op.name, constant=np.array(known, output.dtype.as_numpy_dtype)))
    return values


def _shape_when_it_runs(node: Node) -> list[Value] | None:
    if any(isinstance(layout, Divided) for layout in node.layouts):
        return [
            _with_size(node, value, output.dtype) for value, output in zip(node.inputs, node.op.outputs, strict=True)
        ]
    # Of a partial value every worker has the shape.
    return node.run([node.own(i) for i in range(len(node.inputs))], WHOLE)


def _with_size(node: Node, value: Value, dtype: tf.DType) -> Value:
    own = tf.shape(node.walk.tensors(value)[0], out_type=dtype)
    if isinstance(value.layout, Divided):
        dim = value.layout.dim
        own = tf.concat([own[:dim], tf.constant([value.layout.size], dtype), own[dim + 1 :]], 0)
    return node.value(WHOLE, [own])


def size(node: Node) -> list[Value] | None:
    """Size: of the whole tensor."""
    known = _known(node.inputs[0].shape)
    dtype = node.op.outputs[0].dtype.as_numpy_dtype
    return (
        None
        if known is None
        else [Value(WHOLE, node.op.name, constant=np.array(np.prod(known, dtype=np.int64), dtype))]
    )


def rank(node: Node) -> list[Value] | None:
    """Rank: the same for a part."""
    known = node.rank_of(0)
    return None if known is None else [Value(WHOLE, node.op.name, constant=np.array(known, np.int32))]


# ---- reshapes -------------------------------------------------------------------------------------------------------


def reshaped(before: Sequence[int], after: Sequence[int], layout: Divided) -> Divided | None:
    """Returns how a reshaped tensor is divided: along the dimension that begins where the divided one did.

    Args:
        before: The whole shape.
        after: The whole shape it gets.
        layout: Of the tensor before.
    """
    if 0 in before:
        return None
    in_front = int(np.prod(before[: layout.dim], dtype=np.int64))
    behind = int(np.prod(before[layout.dim + 1 :], dtype=np.int64))
    product = 1
    for dim, size in enumerate(after):
        if product == in_front and (size != 1 or layout.size == 1):
            # Entries of one worker, in elements of the dimensions behind the new one.
            behind_new = int(np.prod(after[dim + 1 :], dtype=np.int64))
            elements = [own * behind for own in layout.sizes]
            if behind_new and all(count % behind_new == 0 for count in elements):
                return Divided(dim, tuple(count // behind_new for count in elements))
            return None
        product *= size
    return None


@for_divided(linear=True)
def reshape(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Reshape: where entries of a worker stay consecutive, and full rows of the new shape."""
    before, wanted = _known(shape), node.constant(1)
    if before is None or wanted is None:
        return None
    after, count = [int(size) for size in wanted], math.prod(before)
    if -1 in after:
        rest = math.prod(size for size in after if size != -1)
        after[after.index(-1)] = count // rest if rest else 0
    divided = reshaped(before, after, layout)
    if divided is None:
        return None
    parts = [
        tf.reshape(own, _with_own(after, divided, r))
        for own, r in zip(node.own(0), node.walk.exchange.ranks, strict=True)
    ]
    return [node.value(divided, parts)]


def _with_own(shape: Sequence[int], layout: Divided, rank: int) -> list[int]:
    """Returns a whole shape as it is of a worker's own entries."""
    return [*shape[: layout.dim], layout.sizes[rank], *shape[layout.dim + 1 :]]


def _own_shapes(node: Node, whole: np.ndarray, layout: Divided) -> tuple[tf.Tensor, ...]:
    return node.constants(lambda r: np.array(_with_own(whole.tolist(), layout, r), whole.dtype))


@for_divided(linear=True)
def expand(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """ExpandDims."""
    axis = node.constant(1)
    if axis is None:
        return None
    at = int(np.ravel(axis)[0]) % (len(shape) + 1)
    return node.run_with(0, layout.at(layout.dim + (at <= layout.dim)))


@for_divided(linear=True)
def squeeze(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Squeeze: a divided dimension stays, unless it is the one to go."""
    named = [int(axis) % len(shape) for axis in node.attr("squeeze_dims")]
    gone = named or [d for d, size in enumerate(shape) if size == 1]
    if layout.dim in gone or (not named and None in shape):
        return None
    # By name: a worker's own part may have size 1 where the whole has not.
    parts = [tf.squeeze(own, gone) if gone else own for own in node.own(0)]
    return [node.value(layout.at(layout.dim - sum(d < layout.dim for d in gone)), parts)]


@for_divided(linear=True)
def transpose(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Transpose."""
    order = node.constant(1)
    return None if order is None else node.run_with(0, layout.at(order.tolist().index(layout.dim)))


# ---- joining and parting --------------------------------------------------------------------------------------------


def _agreed(node: Node, indices: Sequence[int], allowed: Any = lambda layout: True) -> Divided | None:
    """Returns the layout of the largest of some inputs of one rank that is divided."""
    found = [
        (node.inputs[i].num_bytes, -i, node.layouts[i])
        for i in indices
        if isinstance(node.layouts[i], Divided) and allowed(node.layouts[i])
    ]
    best = max(found, default=None, key=lambda each: each[:2])
    return best[2] if best is not None else None  # type: ignore[return-value]


def pack(node: Node) -> list[Value] | None:
    """Pack."""
    layout, count = _agreed(node, range(len(node.inputs))), len(node.inputs)
    if layout is None:
        return _all_partial(node)
    old_rank = node.rank_of(0)
    if old_rank is None:
        return None
    axis = node.attr("axis") % (old_rank + 1)
    inputs = [node.local(i, layout) for i in range(count)]
    return node.run(inputs, layout.at(layout.dim + (axis <= layout.dim)))


def _all_partial(node: Node) -> list[Value] | None:
    data = [i for i, value in enumerate(node.inputs) if value.constant is None or value.dtype.is_floating]
    if not any(node.layouts[i] == PARTIAL for i in data) or any(isinstance(each, Divided) for each in node.layouts):
        return None
    return node.run([node.local(i, PARTIAL) if i in data else node.whole(i) for i in range(len(node.inputs))], PARTIAL)


@for_divided(linear=True)
def unpack(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Unpack: not along the divided dimension."""
    axis = node.attr("axis") % len(shape)
    return None if axis == layout.dim else node.run_with(0, layout.at(layout.dim - (axis < layout.dim)))


def concat(node: Node) -> list[Value] | None:
    """ConcatV2: along another dimension than the divided one."""
    last = len(node.inputs) - 1
    axis, old_rank = node.constant(last), node.rank_of(0)
    if axis is None or old_rank is None:
        return None
    along = int(axis) % old_rank
    layout = _agreed(node, range(last), lambda each: each.dim != along)
    if layout is None:
        return None
    sizes = {value.shape[layout.dim] if value.shape else None for value in node.inputs[:last]}
    if sizes != {layout.size}:
        return None
    return node.run([*(node.local(i, layout) for i in range(last)), node.whole(last)], layout)


def _split(data: int, axis_at: int) -> Rule:
    @for_divided(data, linear=True)
    def rule(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
        axis = node.constant(axis_at)
        return None if axis is None or int(axis) % len(shape) == layout.dim else node.run_with(data, layout)

    return rule


@for_divided(linear=True)
def slices(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Slice: a divided dimension must be taken whole."""
    begin, sizes, dim = node.constant(1), node.constant(2), layout.dim
    if begin is None or sizes is None or begin[dim] != 0 or sizes[dim] not in (-1, layout.size):
        return None
    wanted = sizes.copy()
    wanted[dim] = -1
    return node.run([node.own(0), node.whole(1), node.constants(lambda _: wanted)], layout)


def _along_others(argument: int, touched: Callable[[np.ndarray, Divided, int], Any], linear: bool = False) -> Rule:
    """Returns a rule for operations that leave the divided dimension as it is if a constant input says so."""

    @for_divided(linear=linear)
    def rule(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
        known = node.constant(argument)
        return None if known is None or touched(known, layout, len(shape)) else node.run_with(0, layout)

    return rule


pad = _along_others(1, lambda paddings, layout, _: paddings[layout.dim].any())
# Of no rows it says that there is nothing to mirror.
mirror_pad = _along_others(1, lambda paddings, layout, _: paddings[layout.dim].any() or 0 in layout.sizes)
tile = _along_others(1, lambda multiples, layout, _: multiples[layout.dim] != 1, linear=True)
reverse = _along_others(1, lambda axes, layout, rank: layout.dim in {int(axis) % rank for axis in np.ravel(axes)})


def broadcast(node: Node) -> list[Value] | None:
    """BroadcastTo: each worker to its own part of the shape."""
    target, shape, layout = node.constant(1), node.inputs[0].shape, node.layouts[0]
    if target is None or shape is None:
        return None
    if layout == WHOLE:
        return node.whole_until_cut(lambda part: _broadcast_in_parts(node, target, len(shape), part))
    if layout == PARTIAL:
        return node.run_with(0, PARTIAL)
    if not isinstance(layout, Divided):
        return None
    after = layout.at(layout.dim + len(target) - len(shape))
    return (
        None if target[after.dim] != layout.size else node.run([node.own(0), _own_shapes(node, target, after)], after)
    )


def _broadcast_in_parts(node: Node, target: np.ndarray, rank: int, part: Divided) -> Value | None:
    dim = part.dim - (len(target) - rank)
    size = 1 if dim < 0 else (node.inputs[0].shape or ())[dim]
    if size is None or (size != 1 and size != part.size):
        return None
    given = node.local(0, part.at(dim)) if dim >= 0 and size == part.size else node.whole(0)
    return node.run([given, _own_shapes(node, target, part)], part)[0]


def ensure_shape(node: Node) -> list[Value] | None:
    """EnsureShape: of the whole tensor, which has it."""
    return list(node.inputs) if node.layouts[0] != WHOLE else None


# ---- strided slices -------------------------------------------------------------------------------------------------


def _picked(node: Node, first: int, old_rank: int) -> list[tuple[int, Any]] | None:
    """Returns what a StridedSlice makes of each dimension of its input: (dimension, kept | gone | changed), in the order of
    the output, with new dimensions as (-1, new); None if it is not known."""
    begin, end, strides = (node.constant(first + i) for i in range(3))
    if begin is None or end is None or strides is None:
        return None
    masks = {name: int(node.attr(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    result: list[tuple[int, Any]] = []
    dim, count = 0, len(begin)
    after_ellipsis = 0
    for i in range(count):
        if masks["ellipsis"] >> i & 1:
            after_ellipsis = sum(not masks["new_axis"] >> j & 1 for j in range(i + 1, count))
            while dim < old_rank - after_ellipsis:
                result.append((dim, "kept"))
                dim += 1
        elif masks["new_axis"] >> i & 1:
            result.append((-1, "new"))
        elif masks["shrink_axis"] >> i & 1:
            result.append((dim, "gone"))
            dim += 1
        else:
            full = masks["begin"] >> i & 1 and masks["end"] >> i & 1 and int(strides[i]) == 1
            result.append((dim, "kept" if full else (int(begin[i]), int(end[i]), int(strides[i]), i)))
            dim += 1
    result += [(d, "kept") for d in range(dim, old_rank)]
    return result


@for_divided(linear=True)
def strided_slice(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """StridedSlice: of a divided dimension all entries, whatever becomes of the others."""
    picked = _picked(node, 1, len(shape))
    kept = [each for each in picked or () if each[1] != "gone"]
    place = next((i for i, (dim, _) in enumerate(kept) if dim == layout.dim), None)
    if place is None or not _takes_all(node, kept[place][1], layout.size):
        return None
    return node.run_with(0, layout.at(place), **_by_masks(node, kept[place][1]))


def _takes_all(node: Node, what: Any, size: int) -> bool:
    if what == "kept":
        return True
    begin, end, stride, i = what
    from_start = bool(node.attr("begin_mask") >> i & 1) or begin in (0, -size)
    to_end = bool(node.attr("end_mask") >> i & 1) or end >= size
    return stride == 1 and from_start and to_end


def _by_masks(node: Node, what: Any) -> dict[str, int]:
    """Returns attributes that say "all" by masks where the script says it by numbers, which are the whole tensor's."""
    if what == "kept":
        return {}
    return {name: int(node.attr(name)) | 1 << what[3] for name in ("begin_mask", "end_mask")}


@for_divided(4, linear=True)
def strided_slice_gradient(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """StridedSliceGrad(shape, begin, end, strides, dy)."""
    whole = node.constant(0)
    picked = None if whole is None else _picked(node, 1, len(whole))
    if whole is None or picked is None:
        return None
    dim, what = [each for each in picked if each[1] != "gone"][layout.dim]
    if dim < 0 or not _takes_all(node, what, int(whole[dim])):
        return None
    after = layout.at(dim)
    inputs = [_own_shapes(node, whole, after), *(node.whole(i) for i in (1, 2, 3)), node.own(4)]
    return node.run(inputs, after, **_by_masks(node, what))


@for_divided()
def one_hot(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """OneHot: a new dimension beside those of the indices."""
    axis = node.attr("axis") % (len(shape) + 1)
    return node.run_with(0, layout.at(layout.dim + (axis <= layout.dim)))


def _in_the_last(count: int) -> Rule:
    """Returns a rule for operations on the last dimensions, each by itself along the others."""

    @for_divided()
    def rule(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
        return node.run_with(0, layout) if layout.dim < len(shape) - count else None

    return rule


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    table: dict[str, object] = {
        "Shape": shape, "ShapeN": shape, "Size": size, "Rank": rank, "Reshape": reshape, "ExpandDims": expand,
        "Squeeze": squeeze, "Transpose": transpose, "Pack": pack, "Unpack": unpack, "ConcatV2": concat, "Split": _split(1, 0),
        "SplitV": _split(0, 2), "Slice": slices, "Tile": tile, "BroadcastTo": broadcast, "ReverseV2": reverse,
        "EnsureShape": ensure_shape, "StridedSlice": strided_slice, "StridedSliceGrad": strided_slice_gradient,
        "OneHot": one_hot,
    }  # fmt: skip
    table.update({"Pad": pad, "PadV2": pad, "MirrorPad": mirror_pad, "MirrorPadGrad": mirror_pad})
    table.update(dict.fromkeys(["MatrixDiagV3", "MatrixDiag"], _in_the_last(1)))
    matrices = ["MatrixBandPart", "MatrixDiagPartV3", "MatrixSetDiagV3", "Cholesky", "MatrixInverse"]
    table.update(dict.fromkeys(matrices, _in_the_last(2)))
    return table
