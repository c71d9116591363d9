"""Computes the mean and the variance of a batch by one exchange.

Each worker sends the mean of its own entries, what rounding took from it, and the sum of squares about it. Chan, Golub and
LeVeque (Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979) put means and sums of squares
together: as exactly as two passes over all entries, however far the mean is from zero, if differences of means are not rounded.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.division.walker import Node, Walk
from fdt.program.body import Wire
from fdt.program.layout import PARTIAL, WHOLE, Divided
from fdt.program.size import product
from fdt.program.value import Value


def together(
    walk: Walk, value: Value, axes: Sequence[int], dtype: tf.DType, keep: bool, reader: str
) -> list[tuple[Wire, ...]] | None:
    """Returns the mean and the variance of a divided value, on each worker, or None if its size is not known.

    Args:
        walk: The division.
        value: Divided along one of the axes.
        axes: Over which moments are taken.
        dtype: In which they are computed.
        keep: Whether the axes stay, with size 1.
        reader: Name of the operation that needs them.
    """
    layout, shape = value.layout, value.shape
    if not isinstance(layout, Divided) or shape is None or any(shape[axis] is None for axis in axes):
        return None
    if walk.exchange.is_near:
        return _in_turn(walk, value, axes, dtype, keep, reader)
    rest = [size for axis in axes if axis != layout.dim and (size := shape[axis]) is not None]
    counts = walk.sizes(lambda _: [product([size, *rest]) for size in layout.sizes])
    order, workers = list(axes), walk.exchange.num_workers

    def own(rank: int, entries: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        entries = tf.cast(entries, dtype)
        # A worker without rows has no 0 / 0.
        count = tf.cast(tf.maximum(numbers[rank], 1), dtype)
        mean = tf.reduce_sum(entries, order, keepdims=True) / count
        about = entries - mean
        rest_of_mean = tf.reduce_sum(about, order, keepdims=keep) / count
        squares = tf.reduce_sum(tf.square(about), order, keepdims=keep) - count * tf.square(rest_of_mean)
        # Of equal numbers rounding may leave less than nothing, of which a script may take the root.
        squares = tf.where(squares < 0, tf.zeros_like(squares), squares)
        return tf.stack([mean if keep else tf.squeeze(mean, order), rest_of_mean, squares])[None]

    def combined(_: int, parts: tf.Tensor, numbers: tf.Tensor) -> list[tf.Tensor]:
        each = tf.reshape(tf.cast(numbers, dtype), [-1] + [1] * (len(parts.shape) - 2))
        count, first = tf.reduce_sum(each), parts[0, 0]
        means = parts[:, 0] - first + parts[:, 1]
        mean = tf.reduce_sum(each * means, 0) / count
        squares = tf.reduce_sum(parts[:, 2] + each * tf.square(means - mean), 0)
        return [first + mean, squares / count]

    key = ("moments", *order, dtype, keep)
    (tensors,) = walk.computed(own, [value, counts], key)
    kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
    parts = Value(Divided(0, (1,) * workers), value.source, (workers, 3, *kept), dtype, tensors)
    whole = walk.converted(parts, WHOLE, reader)
    return walk.computed(combined, [whole, counts], ("together", *key), count=2, alike=True)


def _in_turn(
    walk: Walk, value: Value, axes: Sequence[int], dtype: tf.DType, keep: bool, reader: str
) -> list[tuple[Wire, ...]]:
    """Finds the mean, and then the variance about it: two exchanges, and a pass over the values less."""
    shape, order = value.shape or (), list(axes)
    sizes = [size for axis in axes if (size := shape[axis]) is not None]
    count = walk.sizes(lambda _: [product(sizes)])
    kept = [
        tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes)
        for keeps in (True, keep)
    ]

    def total(_: int, entries: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(entries, dtype), order, keepdims=True) / tf.cast(number[0], dtype)

    def squares(_: int, entries: tf.Tensor, mean: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        differences = tf.math.squared_difference(tf.cast(entries, dtype), mean)
        return tf.reduce_sum(differences, order, keepdims=keep) / tf.cast(number[0], dtype)

    key = ("in turn", *order, dtype, keep)
    (parts,) = walk.computed(total, [value, count], ("mean", *key))
    mean = walk.converted(Value(PARTIAL, value.source, kept[0], dtype, parts), WHOLE, reader)
    (parts,) = walk.computed(squares, [value, mean, count], ("variance", *key))
    variance = walk.converted(Value(PARTIAL, value.source, kept[1], dtype, parts), WHOLE, reader)
    (means,) = (
        [walk.tensors(mean)]
        if keep
        else walk.computed(lambda _, m: tf.squeeze(m, order), [mean], ("flat", *key), alike=True)
    )
    return [tuple(means), tuple(walk.tensors(variance))]


def mean(node: Node, axes: set[int]) -> list[Value] | None:
    """Mean, where the variance about it is needed too, as `tf.nn.moments` computes it: finds both.

    Returns:
        The mean; None if the step needs no variance, or one of sizes that are not known, or if exchanges take little time.
    """
    reader, value = _variance(node.op.made), node.inputs[0]
    is_apart = node.walk.exchange.is_near or node.walk.own_rows is not None
    if reader is None or value.dtype not in (tf.float32, tf.float64) or is_apart:
        return None
    found = together(node.walk, value, sorted(axes), value.dtype, node.attr("keep_dims"), node.op.name)
    if found is None:
        return None
    mean_, variance = found
    node.walk.variances[node.walk.path, reader] = variance
    return [node.value(WHOLE, mean_)]


def variance(node: Node) -> list[Value] | None:
    """Mean of squares about a mean, which `mean` has found already; None for any other."""
    found = node.walk.variances.pop((node.walk.path, node.op.name), None)
    return None if found is None else [node.value(WHOLE, found)]


def _variance(operation: Any) -> str | None:
    """Returns the name of the operation that computes the variance about a mean over the same axes; None if there is none."""
    given, axes = operation.inputs
    for stopped in operation.outputs[0].consumers():
        if stopped.type != "StopGradient":
            continue
        for difference in stopped.outputs[0].consumers():
            if difference.type != "SquaredDifference" or difference.inputs[0].name != given.name:
                continue
            for reader in difference.outputs[0].consumers():
                if reader.type == "Mean" and reader.get_attr("keep_dims") == operation.get_attr("keep_dims"):
                    over, of = tf.get_static_value(reader.inputs[1]), tf.get_static_value(axes)
                    if over is not None and of is not None and over.tolist() == of.tolist():
                        return str(reader.name)
    return None
