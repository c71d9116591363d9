"""Rules for lists of tensors (TensorList): a list is divided as its elements are."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fdt.division.conversions import MustBeWholeError
from fdt.division.walker import Node
from fdt.program.body import Wire
from fdt.program.layout import WHOLE, Divided, Layout
from fdt.program.value import Elements, Value, known

# The most entries of a constant that is tracked in lists: a loop keeps sizes there for its gradient.
_MAX_ENTRIES = 64


def _own_shape(node: Node, index: int, layout: Layout) -> tuple[Wire, ...] | None:
    """Returns the input with the elements' shape, adjusted to each worker's own elements."""
    shape = node.constant(index)
    if not isinstance(layout, Divided):
        return node.whole(index)
    if shape is None:
        return _worked_out(node, index, layout)
    if shape.ndim == 0 or shape[layout.dim] < 0:
        return node.whole(index)
    return node.own_shapes(index, shape, layout)


def _worked_out(node: Node, index: int, layout: Divided) -> tuple[Wire, ...] | None:
    whole = node.held(index, WHOLE)
    if whole.shape is None or len(whole.shape) != 1:
        return None

    def own(_: int, shape: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        return tf.concat([shape[: layout.dim], tf.cast(size, shape.dtype), shape[layout.dim + 1 :]], 0)

    return node.walk.computed(own, [whole, node.walk.sizes(lambda rank: [layout.sizes[rank]])])[0]


def made(node: Node) -> list[Value]:
    """TensorListReserve, EmptyTensorList: the list is empty, so its first element decides its layout."""
    shape_at = 0

    def remake(layout: Layout) -> Value:
        own_shape = _own_shape(node, shape_at, layout)
        if own_shape is None or node.op.name in node.walk.must_be_whole:
            raise MustBeWholeError(result)
        (value,) = node.run([own_shape, node.whole(1)], layout)
        return value

    (result,) = node.run([node.whole(0), node.whole(1)], WHOLE)
    if node.op.name not in node.walk.must_be_whole:
        result.remake = remake
    result.elements = () if node.op.type == "EmptyTensorList" else None
    return [result]


def from_tensor(node: Node) -> list[Value] | None:
    """TensorListFromTensor: for [time, rows, ...] the elements' rows stay divided."""
    layout = node.layouts[0]
    if not isinstance(layout, Divided) or layout.dim == 0 or node.op.name in node.walk.must_be_whole:
        return None
    elements = layout.at(layout.dim - 1)
    own_shape = _own_shape(node, 1, elements)
    return None if own_shape is None else node.run([node.own(0), own_shape], elements)


def stacked(node: Node) -> list[Value] | None:
    """TensorListStack."""
    layout = node.layouts[0]
    own_shape = _own_shape(node, 1, layout)
    if own_shape is None:
        return None
    return node.run([node.own(0), own_shape], layout.at(layout.dim + 1) if isinstance(layout, Divided) else layout)


def item(node: Node) -> list[Value] | None:
    """TensorListGetItem."""
    own_shape = _own_shape(node, 2, node.layouts[0])
    return None if own_shape is None else node.run([node.own(0), node.whole(1), own_shape], node.layouts[0])


def with_item(node: Node) -> list[Value] | None:
    """TensorListSetItem."""
    return _added_to(node, 2, [1])


def pushed(node: Node) -> list[Value] | None:
    """TensorListPushBack."""
    (value,) = _added_to(node, 1, [])
    value.elements = _with(node.inputs[0].elements, node.constant(1), node.inputs[1].dtype)
    return [value]


def _added_to(node: Node, element: int, others: Sequence[int]) -> list[Value]:
    listed = node.inputs[0]
    layout = listed.layout
    if listed.remake is not None:
        layout = node.layouts[element]
    inputs: list[tuple[Wire, ...]] = [()] * len(node.inputs)
    inputs[0], inputs[element] = node.local(0, layout), node.local(element, layout)
    for index in others:
        inputs[index] = node.whole(index)
    (value,) = node.run(inputs, layout)
    value.source = listed.source
    return [value]


def popped(node: Node) -> list[Value] | None:
    """TensorListPopBack."""
    own_shape = _own_shape(node, 1, node.layouts[0])
    if own_shape is None:
        return None
    rest, element = node.run([node.own(0), own_shape], node.layouts[0])
    rest.source, rest.elements = node.inputs[0].source, node.inputs[0].elements
    if rest.elements:
        dtype, shape, entries = rest.elements
        element = known(np.array(entries, object).reshape(shape), node.op.name, dtype)
    return [rest, element]


def _with(elements: Elements, added: np.ndarray | None, dtype: tf.DType) -> Elements:
    """Returns a list's elements after one more is added."""
    if elements is None or added is None or added.size > _MAX_ENTRIES:
        return None
    one = dtype, added.shape, tuple(added.astype(object).flat)
    return one if elements in ((), one) else None


def length(node: Node) -> list[Value]:
    """TensorListLength: the same on all workers."""
    return node.run([node.own(0)], WHOLE)


def element_shape(node: Node) -> list[Value] | None:
    """TensorListElementShape: returns a whole element's shape."""
    layout = node.layouts[0]
    if not isinstance(layout, Divided):
        return node.run([node.own(0)], WHOLE)
    own = node.value(WHOLE, node.emit([node.own(0)[0]]))

    def whole(_: int, shape: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        return tf.concat([shape[: layout.dim], tf.cast(size, shape.dtype), shape[layout.dim + 1 :]], 0)

    return [node.computed(whole, [own, node.walk.sizes(lambda _: [layout.size])], WHOLE)]


def added(node: Node) -> list[Value] | None:
    """AddN of lists, element by element."""
    layout = next((v.layout for v in node.inputs if v.remake is None and v.layout != WHOLE), WHOLE)
    if layout != WHOLE and any(v.remake is None and v.layout != layout for v in node.inputs):
        raise MustBeWholeError(next(v for v in node.inputs if v.layout == layout))
    values = node.run([node.local(i, layout) for i in range(len(node.inputs))], layout)
    values[0].source = next((v.source for v in node.inputs if v.remake is None), values[0].source)
    return values


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        "TensorListReserve": made, "EmptyTensorList": made, "TensorListFromTensor": from_tensor,
        "TensorListStack": stacked, "TensorListGetItem": item, "TensorListSetItem": with_item,
        "TensorListPushBack": pushed, "TensorListPopBack": popped, "TensorListLength": length,
        "TensorListElementShape": element_shape,
    }  # fmt: skip
