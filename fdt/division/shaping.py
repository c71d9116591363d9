"""Rules for operations that read shapes or move entries: reshapes, slices, joins."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division import slices
from fdt.division.walker import Node, Rule, for_divided
from fdt.program.layout import PARTIAL, WHOLE, Divided, Owned, joined
from fdt.program.size import Dim, is_number, product
from fdt.program.value import Value

Shape = tuple[Dim | None, ...]


def _known(shape: Sequence[Dim | None] | None) -> tuple[Dim, ...] | None:
    found = [size for size in shape or () if size is not None]
    return None if shape is None or len(found) < len(shape) else tuple(found)


# ---- shapes are those of the whole tensor ---------------------------------------------------------------------------


def shape(node: Node) -> list[Value] | None:
    """Shape and ShapeN: return the whole tensor's shape."""
    values = []
    for value, output in zip(node.inputs, node.op.outputs, strict=True):
        known = _known(value.shape)
        if known is None:
            return _shape_when_it_runs(node)
        values.append(_numbers(known, output.dtype))
    return node.known(values)


def _numbers(sizes: Any, dtype: tf.DType) -> np.ndarray:
    numbers = np.array(sizes, object)
    return numbers.astype(dtype.as_numpy_dtype) if all(map(is_number, numbers.flat)) else numbers


def _shape_when_it_runs(node: Node) -> list[Value] | None:
    if any(isinstance(layout, Owned) for layout in node.layouts):
        return _number_of_owned(node)
    if any(isinstance(layout, Divided) for layout in node.layouts):
        return [_with_size(node, place) for place in range(len(node.inputs))]
    # Every worker's tensor of a partial value has the full shape.
    return node.run([node.own(i) for i in range(len(node.inputs))], WHOLE)


def _number_of_owned(node: Node) -> list[Value] | None:
    # Each entry is on one worker.
    return node.run([node.own(0)], PARTIAL) if node.rank_of(0) == 1 and len(node.inputs) == 1 else None


def _with_size(node: Node, place: int) -> Value:
    value, dtype = node.inputs[place], node.op.outputs[place].dtype
    layout = value.layout

    def whole(_: int, tensor: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        own = tf.shape(tensor, out_type=dtype)
        if not isinstance(layout, Divided):
            return own
        return tf.concat([own[: layout.dim], tf.cast(size, dtype), own[layout.dim + 1 :]], 0)

    size = node.walk.sizes(lambda _: [layout.size if isinstance(layout, Divided) else 0])
    return node.computed(whole, [value, size], WHOLE, output=place)


def size(node: Node) -> list[Value] | None:
    """Size: of the whole tensor."""
    known = _known(node.inputs[0].shape)
    if known is None and isinstance(node.layouts[0], Owned):
        return _number_of_owned(node)
    return None if known is None else node.known([_numbers(product(known), node.op.outputs[0].dtype)])


def rank(node: Node) -> list[Value] | None:
    """Rank: the same for a part."""
    known = node.rank_of(0)
    return None if known is None else node.known([np.array(known, np.int32)])


# ---- reshapes -------------------------------------------------------------------------------------------------------


def reshaped(before: Sequence[Dim], after: Sequence[Dim], layout: Divided) -> Divided | None:
    """Returns a reshaped tensor's layout, divided along the new dimension that begins where the divided one did.

    Args:
        before: The whole tensor's old shape.
        after: The whole tensor's new shape.
        layout: The layout before the reshape.
    """
    if 0 in before:
        return None
    in_front, behind = product(before[: layout.dim]), product(before[layout.dim + 1 :])
    passed: Dim = 1
    for dim, size in enumerate(after):
        if passed == in_front and (size != 1 or layout.size == 1):
            # Entries of one worker, in elements of the dimensions behind the new one.
            behind_new = product(after[dim + 1 :])
            elements = [[own * behind for own in block] for block in layout.each]
            if behind_new and all(count % behind_new == 0 for block in elements for count in block):
                return joined(dim, [tuple(count // behind_new for count in block) for block in elements])
            return None
        passed *= size
    return None


@for_divided(linear=True)
def reshape(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Reshape: divided if each worker's entries stay consecutive and are full rows of the new shape."""
    before, wanted = _known(shape), node.constant(1)
    if before is None or wanted is None:
        return None
    after, count = wanted.tolist(), product(before)
    rests = [place for place, size in enumerate(after) if is_number(size) and size == -1]
    for place in rests:
        rest = product(size for other, size in enumerate(after) if other != place)
        after[place] = count // rest if rest else 0
    divided = reshaped(before, after, layout)
    if divided is None:
        return None
    return node.run([node.own(0), node.own_shapes(1, after, divided)], divided)


@for_divided(linear=True)
def squeeze(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Squeeze: a divided dimension stays, unless it is the one to go."""
    named = [int(axis) % len(shape) for axis in node.attr("squeeze_dims")]
    gone = named or [d for d, size in enumerate(shape) if size == 1]
    if layout.dim in gone or (not named and None in shape):
        return None
    # Name the dimensions: a worker's part may have size 1 where the whole tensor does not.
    after = layout.at(layout.dim - sum(d < layout.dim for d in gone))
    return node.run_with(0, after, squeeze_dims=gone) if gone else list(node.inputs)


# ---- joining and parting --------------------------------------------------------------------------------------------


def _agreed(node: Node, indices: Sequence[int], allowed: Any = lambda layout: True) -> Divided | None:
    """Returns the layout of the largest divided one of some inputs with equal ranks."""
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
    sizes = [value.shape[layout.dim] if value.shape else None for value in node.inputs[:last]]
    if any(size is None or size != layout.size for size in sizes):
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


@for_divided(linear=True)
def pad(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
    """Pad, PadV2: padding along the divided dimension is the gradient of a slice."""
    paddings = node.constant(1)
    if paddings is None:
        return None
    return slices.padded(node, layout, paddings) if paddings[layout.dim].any() else node.run_with(0, layout)


def broadcast(node: Node) -> list[Value] | None:
    """BroadcastTo: each worker broadcasts to its own part of the shape."""
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
        None if target[after.dim] != layout.size else node.run([node.own(0), node.own_shapes(1, target, after)], after)
    )


def _broadcast_in_parts(node: Node, target: np.ndarray, rank: int, part: Divided) -> Value | None:
    dim = part.dim - (len(target) - rank)
    size = 1 if dim < 0 else (node.inputs[0].shape or ())[dim]
    if size is None or (size != 1 and size != part.size):
        return None
    given = node.local(0, part.at(dim)) if dim >= 0 and size == part.size else node.whole(0)
    return node.run([given, node.own_shapes(1, target, part)], part)[0]


def ensure_shape(node: Node) -> list[Value] | None:
    """EnsureShape: of the whole tensor, which has it."""
    return list(node.inputs) if node.layouts[0] != WHOLE else None


# ---- operations that leave the divided dimension as it is, perhaps at another place -----------------------------------

# From an operation, the divided dimension and the rank to the dimension's place in the output; None if it changes.
Place = Callable[[Node, int, int], int | None]


def _kept(place: Place, linear: bool = False) -> Rule:
    @for_divided(linear=linear)
    def rule(node: Node, layout: Divided, shape: Shape) -> list[Value] | None:
        dim = place(node, layout.dim, len(shape))
        return None if dim is None else node.run_with(0, layout.at(dim))

    return rule


def _axes(node: Node, index: int, rank: int) -> set[int] | None:
    """Returns the dimensions that a constant input names."""
    known = node.constant(index)
    return None if known is None else {int(axis) % rank for axis in np.ravel(known)}


def _made_before(axes: set[int] | None, dim: int) -> int | None:
    """Returns a dimension's index after new dimensions were inserted at these indices of the output."""
    return None if axes is None else dim + (min(axes) <= dim)


def _other_than(index: int, dropped: bool = False) -> Place:
    """Returns a `Place` for operations along the axes that an input names; `dropped`: the output lacks these axes."""

    def place(node: Node, dim: int, rank: int) -> int | None:
        axes = _axes(node, index, rank)
        return None if axes is None or dim in axes else dim - (sum(axis < dim for axis in axes) if dropped else 0)

    return place


def _unpacked(node: Node, dim: int, rank: int) -> int | None:
    axis = node.attr("axis") % rank
    return None if axis == dim else dim - (axis < dim)


def _transposed(node: Node, dim: int, rank: int) -> int | None:
    order = node.constant(1)
    return None if order is None else order.tolist().index(dim)


def _unpadded(node: Node, dim: int, rank: int) -> int | None:
    """Returns the dimension if it is not padded and every worker has rows: MirrorPad fails on empty inputs."""
    paddings, layout = node.constant(1), node.layouts[0]
    assert isinstance(layout, Divided)
    return None if paddings is None or paddings[dim].any() or 0 in layout.sizes else dim


def _untiled(node: Node, dim: int, rank: int) -> int | None:
    multiples = node.constant(1)
    return None if multiples is None or multiples[dim] != 1 else dim


def set_diagonals(node: Node) -> list[Value] | None:
    """MatrixSetDiagV3: works separately along the dimensions before the matrices, which the diagonals have as well."""
    rank = node.rank_of(0)
    for layout in node.layouts[:2]:
        if rank is not None and isinstance(layout, Divided) and layout.dim < rank - 2:
            return node.run([node.local(0, layout), node.local(1, layout), node.whole(2)], layout)
    return None


def _before_last(count: int) -> Place:
    """Returns a `Place` for operations that work on the last `count` dimensions, separately along the others."""
    return lambda node, dim, rank: dim if dim < rank - count else None


def _before_diagonals(node: Node, dim: int, rank: int) -> int | None:
    """Returns the dimension if it is before the diagonals, which have two dimensions if there are several."""
    which = node.constant(1)
    is_one = which is not None and len(set(np.ravel(which).tolist())) == 1
    return dim if dim < rank - (1 if is_one else 2) else None


_PLACES: dict[tuple[str, ...], Rule] = {
    ("ExpandDims",): _kept(lambda node, dim, rank: _made_before(_axes(node, 1, rank + 1), dim), linear=True),
    ("OneHot",): _kept(lambda node, dim, rank: _made_before({node.attr("axis") % (rank + 1)}, dim)),
    ("Unpack",): _kept(_unpacked, linear=True),
    ("Transpose",): _kept(_transposed, linear=True),
    ("Tile",): _kept(_untiled, linear=True),
    ("MirrorPad", "MirrorPadGrad"): _kept(_unpadded),
    ("ReverseV2", "Cumsum", "Cumprod", "CumulativeLogsumexp"): _kept(_other_than(1)),
    ("ArgMax", "ArgMin"): _kept(_other_than(1, dropped=True)),
    ("Roll",): _kept(_other_than(2), linear=True),
    ("Softmax", "LogSoftmax", "TopKV2", "TopK", "NthElement", "MatrixDiag"): _kept(_before_last(1)),
    ("MatrixDiagV3",): _kept(_before_diagonals),
    ("MatrixBandPart", "MatrixDiagPartV3", "Cholesky", "MatrixInverse"): _kept(_before_last(2)),
}


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    table: dict[str, object] = {
        "Shape": shape, "ShapeN": shape, "Size": size, "Rank": rank, "Reshape": reshape, "Squeeze": squeeze, "Pack": pack,
        "ConcatV2": concat, "Split": _split(1, 0), "SplitV": _split(0, 2), "BroadcastTo": broadcast,
        "EnsureShape": ensure_shape, "Pad": pad, "PadV2": pad, "MatrixSetDiagV3": set_diagonals,
    }  # fmt: skip
    return table | {name: rule for names, rule in _PLACES.items() for name in names}
