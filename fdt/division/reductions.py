"""Rules for sums, means and extremes over dimensions; a reduction over the divided dimension is partial."""

import numpy as np
import tensorflow as tf

from fdt.division import moments
from fdt.division.elementwise import COMBINE_OF
from fdt.division.walker import Node, for_divided
from fdt.program.layout import PARTIAL, Divided, Partial
from fdt.program.size import Dim, is_number, product
from fdt.program.value import Value

Shape = tuple[Dim | None, ...]


def reduced(node: Node) -> list[Value] | None:
    """Sum, Mean, Max, Min, All, Any, Prod, EuclideanNorm and ReduceJoin over the axes of the second input."""
    axes_given, rank = node.constant(1), node.rank_of(0)
    if axes_given is None or rank is None:
        return None
    axes = {int(axis) % rank for axis in np.ravel(axes_given)} if rank else set()
    axes_whole, layout = node.whole(1), node.layouts[0]
    if layout == PARTIAL and node.op.type in ("Sum", "Mean"):
        return node.run([node.own(0), axes_whole], PARTIAL)
    if node.op.type == "Mean" and (found := moments.variance(node)) is not None:
        return found
    if not isinstance(layout, Divided):
        return None
    if layout.dim not in axes:
        kept = layout.dim if node.attr("keep_dims") else layout.dim - sum(axis < layout.dim for axis in axes)
        return node.run([node.own(0), axes_whole], layout.at(kept))
    if node.op.type == "Mean":
        return moments.mean(node, axes) or _mean(node, axes)
    if node.op.type == "Sum":
        return node.run([node.own(0), axes_whole], PARTIAL)
    if node.op.type in COMBINE_OF:
        return node.run([node.own(0), axes_whole], Partial(COMBINE_OF[node.op.type]))
    return None


def _mean(node: Node, axes: set[int]) -> list[Value] | None:
    """Divides a worker's sum by the number of all workers' entries, so that a worker without rows has no 0 / 0."""
    shape = node.inputs[0].shape
    assert shape is not None
    sizes = [shape[axis] for axis in axes]
    dtype = node.inputs[0].dtype
    if not dtype.is_floating or any(size is None for size in sizes):
        return None
    count = product(size for size in sizes if size is not None)
    keep, order = node.attr("keep_dims"), sorted(axes)

    def mean(_: int, own: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(own, order, keepdims=keep) / tf.cast(entries[0], dtype)

    def fixed(_: int, own: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(own, order, keepdims=keep) / tf.constant(float(count), dtype)

    if is_number(count):
        return [node.computed(fixed, node.inputs[:1], PARTIAL, (count, keep, *order))]
    return [node.computed(mean, [node.inputs[0], node.walk.sizes(lambda _: [count])], PARTIAL, (keep, *order))]


@for_divided()
def halved_squares(node: Node, layout: Divided, shape: Shape) -> list[Value]:
    """L2Loss: half the sum of squares of all entries."""
    return node.run_with(0, PARTIAL)


@for_divided(linear=True)
def bias_gradient(node: Node, layout: Divided, shape: Shape) -> list[Value]:
    """BiasAddGrad: a sum over all dimensions but the channels'."""
    channels = 1 if node.attr("data_format") == b"NCHW" else len(shape) - 1
    return node.run_with(0, layout.at(0) if layout.dim == channels else PARTIAL)


def row_losses(node: Node) -> list[Value] | None:
    """(Sparse)SoftmaxCrossEntropyWithLogits: a loss and a gradient for each row of [rows, classes]."""
    rows = next((layout for layout in node.layouts if isinstance(layout, Divided)), None)
    if rows is None or rows.dim != 0 or node.rank_of(0) != 2:
        return None
    return node.run([node.local(0, rows), node.local(1, rows)], rows)


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    table: dict[str, object] = dict.fromkeys(
        ["Sum", "Mean", "Max", "Min", "All", "Any", "Prod", "EuclideanNorm", "ReduceJoin"], reduced
    )
    table.update(dict.fromkeys(["SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"], row_losses))
    table.update({"L2Loss": halved_squares, "BiasAddGrad": bias_gradient})
    return table
