"""Rules for operations that move entries about: shapes, slices, joins."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division import slices
from fdt.division.layout import PARTIAL, WHOLE, Divided, joined
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
            elements = [[own * behind for own in block] for block in layout.each]
            if behind_new and all(count % behind_new == 0 for block in elements for count in block):
                return joined(dim, [tuple(count // behind_new for count in block) for block in elements])
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
        tf.reshape(own, shape)
        for own, shape in zip(node.own(0), node.own_shapes(np.array(after, wanted.dtype), divided), strict=True)
    ]
    return [node.value(divided, parts)]


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
    """ConcatV2."""
    last = len(node.inputs) - 1
    axis, old_rank = node.constant(last), node.rank_of(0)
    if axis is None or old_rank is None:
        return None
    along = int(axis) % old_rank
    layout = _agreed(node, range(last), lambda each: each.dim != along)
    if layout is None:
        return slices.put_together(node, along)
    sizes = {value.shape[layout.dim] if value.shape else None for value in node.inputs[:last]}
    if sizes != {layout.size}:
        return None
    return node.run([*(node.local(i, layout) for i in range(last)), node.whole(last)], layout)


def _split(data: int, axis_at: int) -> Rule:
    @for_divided(data, linear=True)
    def rule(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
        axis = node.constant(axis_at)
        if axis is None:
            return None
        if int(axis) % len(shape) != layout.dim:
            return node.run_with(data, layout)
        return slices.parted(node, data, layout)

    return rule


def _along_others(argument: int, touched: Callable[[np.ndarray, Divided, int], Any], linear: bool = False) -> Rule:
    """Returns a rule for operations that leave the divided dimension as it is if a constant input says so."""

    @for_divided(linear=linear)
    def rule(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
        known = node.constant(argument)
        return None if known is None or touched(known, layout, len(shape)) else node.run_with(0, layout)

    return rule


@for_divided(linear=True)
def pad(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Pad, PadV2: along the divided dimension it is the gradient of a slice."""
    paddings = node.constant(1)
    if paddings is None:
        return None
    return slices.padded(node, layout, paddings) if paddings[layout.dim].any() else node.run_with(0, layout)


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
    return None if target[after.dim] != layout.size else node.run([node.own(0), node.own_shapes(target, after)], after)


def _broadcast_in_parts(node: Node, target: np.ndarray, rank: int, part: Divided) -> Value | None:
    dim = part.dim - (len(target) - rank)
    size = 1 if dim < 0 else (node.inputs[0].shape or ())[dim]
    if size is None or (size != 1 and size != part.size):
        return None
    given = node.local(0, part.at(dim)) if dim >= 0 and size == part.size else node.whole(0)
    return node.run([given, node.own_shapes(target, part)], part)[0]


def ensure_shape(node: Node) -> list[Value] | None:
    """EnsureShape: of the whole tensor, which has it."""
    return list(node.inputs) if node.layouts[0] != WHOLE else None


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
        "SplitV": _split(0, 2), "Tile": tile, "BroadcastTo": broadcast, "ReverseV2": reverse,
        "EnsureShape": ensure_shape,
        "OneHot": one_hot,
    }  # fmt: skip
    table.update({"Pad": pad, "PadV2": pad, "MirrorPad": mirror_pad, "MirrorPadGrad": mirror_pad})
    table.update(dict.fromkeys(["MatrixDiagV3", "MatrixDiag"], _in_the_last(1)))
    matrices = ["MatrixBandPart", "MatrixDiagPartV3", "MatrixSetDiagV3", "Cholesky", "MatrixInverse"]
    table.update(dict.fromkeys(matrices, _in_the_last(2)))
    return table
