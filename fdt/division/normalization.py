"""Rules for fused batch normalization: its moments are means over all rows of the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.division import moments
from fdt.division.walker import Node
from fdt.program.layout import PARTIAL, WHOLE, Divided
from fdt.program.size import Dim, is_number, product, value_of
from fdt.program.value import Value

# The index of the input `scale`.
_SCALE = {"FusedBatchNormV3": 1, "FusedBatchNormGradV3": 2}


def _axes(node: Node) -> tuple[list[int], list[int]]:
    """Returns the dimensions over which moments are taken, and the shape with which per-channel values broadcast."""
    form = node.attr("data_format").decode()
    channel = form.index("C")
    return [d for d in range(len(form)) if d != channel], [-1 if d == channel else 1 for d in range(len(form))]


def _summed(node: Node, make: Callable[..., tf.Tensor], values: Sequence[Value], size: int, key: Any) -> Value:
    """Returns the sum over all workers of `make`'s result on each worker's tensors: [size], of the scale's type."""
    (tensors,) = node.walk.computed(make, values, key)
    part = Value(PARTIAL, node.op.name, (size,), node.inputs[_SCALE[node.op.type]].dtype, tensors)
    return node.walk.converted(part, WHOLE, node.op.name)


class _Count:
    """The number of entries over which moments are taken: a number, or a tensor where it differs from batch to batch.

    Attributes:
        values: The additional inputs of what is computed with it.
    """

    def __init__(self, node: Node, count: Dim) -> None:
        self._count = count
        self.values = [] if is_number(count) else [node.walk.sizes(lambda _: [count])]
        self.key = float(value_of(count)) if is_number(count) else None

    def of(self, given: Sequence[tf.Tensor], dtype: tf.DType) -> Any:
        """Returns it, given the tensors of `values`."""
        return tf.cast(given[0][0], dtype) if given else self.key


def _count(node: Node, axes: list[int]) -> _Count | None:
    shape = node.inputs[0].shape
    sizes = [size for dim, size in enumerate(shape or ()) if dim in axes and size is not None]
    return None if len(sizes) < len(axes) else _Count(node, product(sizes))


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
    epsilon, decay = node.attr("epsilon"), node.attr("exponential_avg_factor")
    key = node.op.type, *spread, count.key, epsilon, decay
    x, (scale, offset, *old) = node.inputs[0], [node.held(i, WHOLE) for i in range(1, 5)]
    found = moments.together(node.walk, x, axes, scale.dtype, False, node.op.name)
    if found is None:
        return None
    of_batch = [Value(WHOLE, node.op.name, scale.shape, scale.dtype, tensors) for tensors in found]

    def normal(_: int, own: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, by: tf.Tensor, to: tf.Tensor) -> tf.Tensor:
        factor = tf.reshape(tf.math.rsqrt(variance + epsilon) * by, spread)
        return tf.cast(
            (tf.cast(own, mean.dtype) - tf.reshape(mean, spread)) * factor + tf.reshape(to, spread), own.dtype
        )

    def told(_: int, mean: tf.Tensor, variance: tf.Tensor, *before: tf.Tensor) -> list[tf.Tensor]:
        old, counted = before[:2], before[2:]
        n = count.of(counted, mean.dtype)
        # The moving variance gets Bessel's correction: the sum is divided by the number of entries minus one.
        new = mean, variance * (n / (tf.maximum(n - 1.0, 1.0) if counted else max(n - 1.0, 1.0)))
        kept = [tf.reshape(each, [-1]) * (1.0 - decay) for each in old] if decay != 1.0 else []
        moving = [each + now * decay for each, now in zip(kept, new, strict=True)] if kept else list(new)
        return [*moving, mean, variance, tf.zeros([0], mean.dtype)]

    y = node.computed(normal, [x, *of_batch, scale, offset], layout, key)
    whole = node.walk.computed(told, [*of_batch, *old, *count.values], ("told", key), count=5, alike=True)
    return [y, *(node.value(WHOLE, tensors, place) for place, tensors in enumerate(whole, 1))]


def _of_own_rows(node: Node, layout: Divided, rows: Sequence[int]) -> list[Value]:
    decay, old = node.attr("exponential_avg_factor"), node.inputs[3:5]
    in_part = decay != 1.0 and all(value.layout == PARTIAL for value in old)
    nothing = [node.walk.computed(lambda _, own: tf.zeros_like(own), [value], "nothing")[0] for value in old]
    moving = nothing if in_part else [node.whole(3), node.whole(4)]
    values = node.run([node.own(0), node.whole(1), node.whole(2), *moving], [layout, *[WHOLE] * 5])
    for value in values[1:]:
        value.own_rows = tuple(rows)
    if not in_part:
        return values
    # A worker keeps its part of the moving statistics, and adds its part of the mean of all workers' moments.
    for place, before in zip((1, 2), old, strict=True):
        told = node.walk.of_own_rows(values[place], tuple(rows))
        values[place] = node.computed(
            lambda _, own, new: own * (1.0 - decay) + new, [before, told], PARTIAL, output=place
        )
    return values


def backward(node: Node) -> list[Value] | None:
    """FusedBatchNormGradV3(dy, x, scale, mean, variance, _), in training, with the moments that `forward` returned."""
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
    epsilon = node.attr("epsilon")
    key = node.op.type, *spread, count.key, epsilon
    gradient, x = (node.held(i, layout) for i in (0, 1))
    scale, mean, variance = (node.held(i, WHOLE) for i in (2, 3, 4))
    size = int((node.inputs[0].shape or ())[spread.index(-1)] or 0)

    def normal(own: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        inverse = tf.math.rsqrt(variance + epsilon)
        return (tf.cast(own, mean.dtype) - tf.reshape(mean, spread)) * tf.reshape(inverse, spread)

    def summed(_: int, dy: tf.Tensor, own: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        g, n = tf.cast(dy, mean.dtype), normal(own, mean, variance)
        return tf.concat([tf.reduce_sum(g, axes), tf.reduce_sum(g * n, axes)], 0)

    def by_x(
        _: int,
        dy: tf.Tensor,
        own: tf.Tensor,
        mean: tf.Tensor,
        variance: tf.Tensor,
        by: tf.Tensor,
        sums: tf.Tensor,
        *n: tf.Tensor,
    ) -> tf.Tensor:
        d_offset, d_scale = (tf.reshape(total / count.of(n, mean.dtype), spread) for total in tf.split(sums, 2))
        g, n = tf.cast(dy, mean.dtype), normal(own, mean, variance)
        factor = tf.reshape(by * tf.math.rsqrt(variance + epsilon), spread)
        return tf.cast(factor * (g - d_offset - n * d_scale), own.dtype)

    def by_weights(_: int, sums: tf.Tensor) -> list[tf.Tensor]:
        nothing = tf.zeros([0], sums.dtype)
        return [*tf.split(sums, 2)[::-1], nothing, nothing]

    given = [gradient, x, mean, variance]
    sums = _summed(node, summed, given, 2 * size, ("sums", key))
    dx = node.computed(by_x, [*given, scale, sums, *count.values], layout, key)
    whole = node.walk.computed(by_weights, [sums], ("weights", key), count=4, alike=True)
    return [dx, *(node.value(WHOLE, tensors, place) for place, tensors in enumerate(whole, 1))]


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {"FusedBatchNormV3": forward, "FusedBatchNormGradV3": backward}
