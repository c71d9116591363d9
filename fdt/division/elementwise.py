"""Rules for operations that compute each entry of their output from the entries at the same place."""

import tensorflow as tf

from fdt.division import lists
from fdt.division.kinds import BROADCASTING, UNARY
from fdt.division.walker import Node
from fdt.program.layout import PARTIAL, WHOLE, Combine, Divided, Layout, Partial
from fdt.program.size import Dim
from fdt.program.value import Value

# Linear operations: applied to the parts of a sum, they give the parts of the result.
_ADDING = frozenset({"AddV2", "Add", "Sub", "AddN"})
_DIVIDING = frozenset({"Div", "RealDiv"})
_LINEAR = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot", "Neg", "Conj", "Real", "Imag"})


def passing(node: Node) -> list[Value]:
    """Identity and similar operations: returns the value itself, of any layout and type."""
    (value,) = node.inputs
    if (value.elements_known is not None and not value.tensors) or value.dtype == tf.variant:
        return [value]
    is_one = value.layout == WHOLE and value.own_rows is None
    tensors = [node.emit([tensor])[0] for tensor in (value.tensors[:1] if is_one else value.tensors)]
    passed = node.value(value.layout, tensors)
    passed.handle = value.handle
    # Share conversions, so that the value is exchanged only once.
    passed.others, passed.whole = value.others, value.whole
    return [passed]


def passing_each(node: Node) -> list[Value]:
    """IdentityN."""
    return list(node.inputs)


def negated(node: Node) -> list[Value] | None:
    """Linear operations of one input: applied to the parts of a sum, they give the parts of the result."""
    (layout,) = node.layouts
    return node.run([node.own(0)], PARTIAL) if layout == PARTIAL else elementwise(node)


def cast(node: Node) -> list[Value] | None:
    """Cast: parts of a sum may be cast if the target type loses no precision."""
    source, target = node.inputs[0].dtype, node.op.outputs[0].dtype
    keeps = target.is_floating or target.is_complex or (source.is_integer and target.is_integer)
    if node.layouts[0] == PARTIAL and keeps and source.name != "bool" and target.size >= source.size:
        return node.run([node.own(0)], PARTIAL)
    found = elementwise(node)
    if found is not None and source.is_integer:
        found[0].cast_of = node.inputs[0].elements_known
    return found


def elementwise(node: Node) -> list[Value] | None:
    """Divides the output as one of the inputs; others are cut to fit, or have size 1 in that dimension."""
    if node.inputs[0].dtype == tf.variant:
        return lists.added(node)
    if all(layout == WHOLE for layout in node.layouts):
        return node.whole_until_cut(lambda layout: _cut(node, layout))
    summed = _summed(node)
    if summed is not None:
        return summed
    return along(node, _target(node))


def _cut(node: Node, layout: Divided) -> Value | None:
    """Computes only each worker's entries of an operation on whole inputs."""
    if any(value.shape is None for value in node.inputs):
        return None
    made = along(node, (layout.dim - max(len(value.shape or ()) for value in node.inputs), layout))
    return None if made is None else made[0]


def _summed(node: Node) -> list[Value] | None:
    """Keeps sums of partial values partial, and their products with whole values, and quotients by them, if not zero."""
    partial = [i for i, layout in enumerate(node.layouts) if layout == PARTIAL]
    if not partial or any(isinstance(layout, Divided) for layout in node.layouts):
        return None
    if all(node.walk.has(node.inputs[i], WHOLE) for i in partial):
        return None
    if node.op.type in _ADDING:
        return node.run([node.local(i, PARTIAL) for i in range(len(node.inputs))], PARTIAL)
    by_number = node.op.type in _DIVIDING and partial == [0] and _is_never_zero(node.inputs[1])
    # What DivNoNan makes of zero is zero for the parts too.
    if by_number or (node.op.type == "DivNoNan" and partial == [0]) or (node.op.type == "Mul" and len(partial) == 1):
        return node.run([node.own(i) for i in range(2)], PARTIAL)
    return None


def _is_never_zero(value: Value) -> bool:
    elements = value.elements_known if value.cast_of is None else value.cast_of
    return elements is not None and all(element != 0 for element in elements.flat)


def _target(node: Node) -> tuple[int, Divided] | None:
    """Returns the dimension, counted from the last (-1), along which the output is divided, and its layout."""
    best: tuple[int, int, Divided] | None = None
    for value in node.inputs:
        if not isinstance(value.layout, Divided) or value.shape is None:
            continue
        dim = value.layout.dim - len(value.shape)
        fits = all(_fits(_size_at(other, dim), value.layout.size) for other in node.inputs)
        if fits and (best is None or value.num_bytes > best[0]):
            best = (value.num_bytes, dim, value.layout)
    return None if best is None else best[1:]


def _fits(size: Dim | None, whole: Dim) -> bool:
    return size is None or size == whole or size == 1


def _size_at(value: Value, dim: int) -> Dim | None:
    shape = value.shape
    if shape is None:
        return None
    return 1 if -dim > len(shape) else shape[dim]


def along(node: Node, target: tuple[int, Divided] | None) -> list[Value] | None:
    """Computes an elementwise operation on each worker's entries along a dimension of the output, counted from the last."""
    if target is None or any(value.shape is None for value in node.inputs):
        return None
    dim, divided = target
    output_rank = max(len(value.shape or ()) for value in node.inputs)
    inputs = []
    for index, value in enumerate(node.inputs):
        rank = len(value.shape or ())
        layout: Layout = WHOLE
        # An input of size 1 serves all entries, unless the divided dimension itself has that size.
        if -dim <= rank and (_size_at(value, dim) != 1 or divided.size == 1):
            layout = divided.at(rank + dim)
        inputs.append(node.local(index, layout))
    return node.run(inputs, divided.at(output_rank + dim))


def unary(node: Node) -> list[Value] | None:
    """Operations of one input. (Monotone functions could keep a partial maximum; no rule needs that.)"""
    (layout,) = node.layouts
    if layout == WHOLE:
        return node.whole_until_cut(lambda part: _cut(node, part))
    return node.run([node.own(0)], layout) if isinstance(layout, Divided) else None


def bitcast(node: Node) -> list[Value] | None:
    """Bitcast: entry by entry, between types of one size."""
    return unary(node) if node.inputs[0].dtype.size == node.op.outputs[0].dtype.size else None


def like(node: Node) -> list[Value] | None:
    """ZerosLike, OnesLike: what the workers hold of the input says what they hold of the output."""
    (layout,) = node.layouts
    # Only the shape is read, which every worker has for a partial value.
    values = node.run([node.own(0)], WHOLE if isinstance(layout, Partial) else layout)
    if values[0].dtype == tf.variant:
        values[0].source = node.inputs[0].source
    return values


def select(node: Node) -> list[Value] | None:
    """Select, of TensorFlow 1: its condition may be a vector that picks rows."""
    ranks = [node.rank_of(i) for i in range(3)]
    if ranks[0] == ranks[1] or ranks[0] == 0:
        return elementwise(node)
    rows = next((layout for layout in node.layouts if isinstance(layout, Divided) and layout.dim == 0), None)
    if rows is None or ranks[0] != 1:
        return None
    return node.run([node.local(i, rows) for i in range(3)], rows)


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    table: dict[str, object] = dict.fromkeys(UNARY, unary)
    table.update(dict.fromkeys(BROADCASTING, elementwise))
    table.update(dict.fromkeys(_LINEAR - {"Identity", "StopGradient", "PreventGradient", "Snapshot"}, negated))
    table.update(dict.fromkeys(("Identity", "StopGradient", "PreventGradient", "Snapshot"), passing))
    table.update(
        {
            "IdentityN": passing_each,
            "Cast": cast,
            "Bitcast": bitcast,
            "Select": select,
            "ZerosLike": like,
            "OnesLike": like,
        }
    )
    return table


COMBINE_OF = {"Max": Combine.MAX, "Min": Combine.MIN, "Any": Combine.MAX, "All": Combine.MIN}
