"""Computes the elements of the small integer tensors with which a step computes shapes, where they are sizes.

Elements that are not computed here are computed when the step runs, as everything else is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fdt.division.shape_rules import broadcast, same
from fdt.program.size import Dim, Size, value_of

if TYPE_CHECKING:
    from fdt.division.walker import Node


def elements(node: "Node") -> list[np.ndarray] | None:
    """Returns the elements of an operation's outputs, computed of sizes; None if they are computed when the step runs."""
    of = _ELEMENTS.get(node.op.type)
    given = [value.elements_known for value in node.inputs]
    if of is None or any(each is None for each in given):
        return None
    if not all(output.dtype.is_integer or output.dtype == tf.bool for output in node.op.outputs):
        return None
    found = of(node, *(np.asarray(each).astype(object) for each in given))
    if found is None:
        return None
    return [np.asarray(each, object) for each in (found if isinstance(found, list) else [found])]


def _sliced(node: "Node", data: np.ndarray, begin: np.ndarray, end: np.ndarray, strides: np.ndarray) -> Any:
    masks = {name: int(node.attr(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if masks["ellipsis"] or masks["new_axis"] or data.ndim != 1 or len(begin) != 1:
        return None
    if masks["shrink_axis"]:
        return np.array(data[int(begin[0])], object)
    return data[None if masks["begin"] else int(begin[0]) : None if masks["end"] else int(end[0]) : int(strides[0])]


def _reduced(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def of(node: "Node", data: np.ndarray, axes: np.ndarray) -> Any:
        axis = tuple(int(each) for each in np.ravel(axes))
        return reduce(data, axis=axis, keepdims=bool(node.attr("keep_dims"))) if data.ndim else data

    return of


def _gathered(node: "Node", data: np.ndarray, indices: np.ndarray, axis: Any = 0) -> Any:
    if node.op.type == "GatherV2" and node.attr("batch_dims"):
        return None
    return np.take(data, indices.astype(np.int64), axis=int(axis))


def _broadcast_elements(node: "Node", one: np.ndarray, other: np.ndarray) -> Any:
    return np.array(list(broadcast(tuple(one), tuple(other))), object)


def _axes_to_sum(node: "Node", one: np.ndarray, other: np.ndarray) -> list[np.ndarray]:
    """BroadcastGradientArgs: the dimensions along which each of two shapes was broadcast."""
    if len(one) == len(other) and all(map(same, one, other)):
        return [np.zeros(0, object)] * 2
    rank = max(len(one), len(other))
    axes: list[list[int]] = [[], []]
    for dim, pair in enumerate(zip(*([1] * (rank - len(shape)) + [*shape] for shape in (one, other)), strict=True)):
        # Where both are 1, TensorFlow sums over both.
        differ = not same(*pair) or value_of(pair[0]) == 1
        for found, size in zip(axes, pair, strict=True):
            found += [dim] if differ and size == 1 else []
    return [np.array(each, object) for each in axes]


def _range(node: "Node", start: Any, limit: Any, delta: Any) -> Any:
    numbers = [each.item() for each in (start, limit, delta)]
    # A range of a size has as many elements: those are made when the step runs.
    return None if any(isinstance(each, Size) for each in numbers) else np.arange(*numbers)


def _selected(node: "Node", choice: np.ndarray, one: np.ndarray, other: np.ndarray) -> Any:
    return np.where(choice.astype(bool), one, other)


def _stitched(node: "Node", *given: np.ndarray) -> np.ndarray:
    """DynamicStitch(places, elements): as gradients of sums make shapes in which some dimensions are 1."""
    count = len(given) // 2
    found: dict[int, Any] = {}
    for places, data in zip(given[:count], given[count:], strict=True):
        found.update(zip(map(int, np.ravel(places)), np.ravel(data), strict=True))
    return np.array([found[place] for place in range(len(found))], object)


def _offsets(node: "Node", axis: np.ndarray, *shapes: np.ndarray) -> list[np.ndarray]:
    """ConcatOffset: where each of several tensors begins in their concatenation, as its gradient needs it."""
    found: list[np.ndarray] = []
    before: Dim = 0
    for shape in shapes:
        offset = np.zeros(len(shape), object)
        offset[int(axis)] = before
        before = before + shape[int(axis)]
        found.append(offset)
    return found


def _split(node: "Node", axis: np.ndarray, data: np.ndarray) -> list[np.ndarray]:
    return np.split(data, len(node.op.outputs), int(axis))


def _elementwise(function: Any) -> Callable[..., Any]:
    return lambda node, *given: function(*given)


def _compared(function: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    return lambda node, one, other: np.vectorize(lambda a, b: bool(function(a, b)), otypes=[object])(one, other)


_ELEMENTS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Identity", "StopGradient", "PreventGradient", "Snapshot"), lambda node, data: data),
    "Cast": lambda node, data: data if node.inputs[0].dtype.is_integer else None,
    "Pack": lambda node, *given: np.stack(given, node.attr("axis")),
    "Unpack": lambda node, data: [*np.moveaxis(data, node.attr("axis"), 0)],
    "ConcatV2": lambda node, *given: np.concatenate(given[:-1], int(given[-1])),
    "ExpandDims": lambda node, data, axis: np.expand_dims(data, int(axis.item() if axis.ndim else axis)),
    "Squeeze": lambda node, data: np.squeeze(data, tuple(node.attr("squeeze_dims")) or None),
    "Reshape": lambda node, data, shape: data.reshape([int(size) for size in shape]),
    "StridedSlice": _sliced,
    "Slice": lambda node, data, begin, size: (
        data[int(begin[0]) :][: None if size[0] == -1 else int(size[0])] if data.ndim == 1 else None
    ),
    "GatherV2": _gathered, "Gather": _gathered, "Split": _split,
    "Mul": _elementwise(np.multiply), "AddV2": _elementwise(np.add), "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract), "FloorDiv": _elementwise(np.floor_divide), "FloorMod": _elementwise(np.mod),
    "Neg": _elementwise(np.negative), "Maximum": _elementwise(np.maximum), "Minimum": _elementwise(np.minimum),
    "Prod": _reduced(np.prod), "Sum": _reduced(np.sum), "Max": _reduced(np.max), "Min": _reduced(np.min),
    "Equal": _compared(lambda a, b: a == b), "NotEqual": _compared(lambda a, b: a != b),
    "Less": _compared(lambda a, b: a < b), "LessEqual": _compared(lambda a, b: a <= b),
    "Greater": _compared(lambda a, b: a > b), "GreaterEqual": _compared(lambda a, b: a >= b),
    "DynamicStitch": _stitched, "ConcatOffset": _offsets, "Select": _selected, "SelectV2": _selected, "Range": _range,
    "BroadcastArgs": _broadcast_elements, "BroadcastGradientArgs": _axes_to_sum,
}  # fmt: skip
