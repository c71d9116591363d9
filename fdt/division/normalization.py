"""Rules for fused batch normalization: its moments are means over all rows of the batch, so they are partial sums."""

from collections.abc import Sequence

import tensorflow as tf

from fdt.division import own_rows
from fdt.division.layout import PARTIAL, WHOLE, Divided
from fdt.division.value import Value
from fdt.division.walker import Node


def _axes(node: Node) -> tuple[list[int], list[int]]:
    """Returns the dimensions that moments are taken over, and the shape that a channel's number broadcasts with."""
    form = node.attr("data_format").decode()
    channel = form.index("C")
    return [d for d in range(len(form)) if d != channel], [-1 if d == channel else 1 for d in range(len(form))]


def _whole_sum(node: Node, tensors: list[tf.Tensor]) -> tf.Tensor:
    """Returns the sum over all workers, which all of them have."""
    value = node.value(PARTIAL, tensors)
    return node.walk.tensors(node.walk.converted(value, WHOLE, node.op.name))[0]


def _count(node: Node, axes: list[int]) -> float | None:
    shape = node.inputs[0].shape
    if shape is None or any(shape[axis] is None for axis in axes):
        return None
    count = 1.0
    for axis in axes:
        count *= shape[axis] or 0
    return count


def forward(node: Node) -> list[Value] | None:
    """FusedBatchNormV3(x, scale, offset, mean, variance)."""
    layout = node.layouts[0]
    axes, spread = _axes(node)
    if not isinstance(layout, Divided) or layout.dim not in axes:
        return None
    if not node.attr("is_training"):
        return node.run([node.own(0), *(node.whole(i) for i in range(1, 5))], [layout, *[WHOLE] * 5])
    if node.walk.own_rows is not None:
        return _of_own_rows(node, layout, node.walk.own_rows)
    count = _count(node, axes)
    if count is None:
        return None
    scale, offset, old_mean, old_variance = (node.whole(i)[0] for i in range(1, 5))
    rows = [tf.cast(own, scale.dtype) for own in node.own(0)]
    mean = _whole_sum(node, [tf.reduce_sum(own, axes) for own in rows]) / count
    centred = [own - tf.reshape(mean, spread) for own in rows]
    variance = _whole_sum(node, [tf.reduce_sum(tf.square(own), axes) for own in centred]) / count
    factor = tf.math.rsqrt(variance + node.attr("epsilon")) * scale
    y = [
        tf.cast(own * tf.reshape(factor, spread) + tf.reshape(offset, spread), node.inputs[0].dtype) for own in centred
    ]
    # What the moving variance is told is Bessel's: the sum over one less than all entries.
    unbiased = variance * (count / max(count - 1.0, 1.0))
    decay = node.attr("exponential_avg_factor")
    if decay != 1.0:
        told_mean = old_mean * (1.0 - decay) + mean * decay
        told_variance = old_variance * (1.0 - decay) + unbiased * decay
    else:
        told_mean, told_variance = mean, unbiased
    whole = [told_mean, told_variance, mean, variance, tf.zeros([0], scale.dtype)]
    return [node.value(layout, y), *(node.value(WHOLE, [tensor]) for tensor in whole)]


def _of_own_rows(node: Node, layout: Divided, rows: Sequence[int]) -> list[Value]:
    decay, old = node.attr("exponential_avg_factor"), node.inputs[3:5]
    in_part = decay != 1.0 and all(value.layout == PARTIAL for value in old)
    nothing = [tuple(map(tf.zeros_like, value.tensors)) for value in old]
    moving = nothing if in_part else [node.whole(3), node.whole(4)]
    values = node.run([node.own(0), node.whole(1), node.whole(2), *moving], [layout, *[WHOLE] * 5])
    for value in values[1:]:
        value.own_rows = tuple(rows)
    if not in_part:
        return values
    # Of moving statistics a worker keeps its part, to which it adds its part of the mean of what all tell.
    for place, before in zip((1, 2), old, strict=True):
        told = own_rows.converted(values[place], values[place].tensors, rows, node.walk.exchange.ranks)
        parts = zip(before.tensors, told.tensors, strict=True)
        values[place] = node.value(PARTIAL, [kept * (1.0 - decay) + new for kept, new in parts])
    return values


def backward(node: Node) -> list[Value] | None:
    """FusedBatchNormGradV3(dy, x, scale, mean, variance, _): of training, with the moments that `forward` gave."""
    layout = next((v for v in node.layouts[:2] if isinstance(v, Divided)), None)
    axes, spread = _axes(node)
    if layout is None or layout.dim not in axes or not node.attr("is_training"):
        return None
    if node.walk.own_rows is not None:
        inputs = [node.local(0, layout), node.local(1, layout), *(node.whole(i) for i in range(2, len(node.inputs)))]
        return node.run(inputs, [layout, PARTIAL, PARTIAL, WHOLE, WHOLE])
    count = _count(node, axes)
    if count is None:
        return None
    scale, mean, variance = (node.whole(i)[0] for i in (2, 3, 4))
    gradient, x = ([tf.cast(own, scale.dtype) for own in node.local(i, layout)] for i in (0, 1))
    inverse = tf.math.rsqrt(variance + node.attr("epsilon"))
    normal = [(own - tf.reshape(mean, spread)) * tf.reshape(inverse, spread) for own in x]
    sums = [
        tf.concat([tf.reduce_sum(g, axes), tf.reduce_sum(g * n, axes)], 0)
        for g, n in zip(gradient, normal, strict=True)
    ]
    d_offset, d_scale = tf.split(_whole_sum(node, sums), 2)
    factor = tf.reshape(scale * inverse, spread)
    means = tf.reshape(d_offset / count, spread), tf.reshape(d_scale / count, spread)
    dx = [
        tf.cast(factor * (g - means[0] - n * means[1]), node.inputs[1].dtype)
        for g, n in zip(gradient, normal, strict=True)
    ]
    nothing = tf.zeros([0], scale.dtype)
    whole = [d_scale, d_offset, nothing, nothing]
    return [node.value(layout, dx), *(node.value(WHOLE, [tensor]) for tensor in whole)]


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {"FusedBatchNormV3": forward, "FusedBatchNormGradV3": backward}
