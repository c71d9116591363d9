"""Does what the compiled operations do, by TensorFlow's own, on machines without a compiler: more slowly, up to rounding.

The formulas are those of `native/compensation.h`; sources are in `nfdt.rules`.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from nfdt.rules import DECAY, EPSILON, Rule


def by_row(indices: tf.Tensor) -> tf.Tensor:
    """See `nfdt.rows.by_row`."""
    return tf.cast(tf.argsort(indices, stable=True), tf.int64)


def distinct(asked: Sequence[tf.Tensor], num_rows: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """See `nfdt.rows.distinct`."""
    flat = [tf.cast(tf.reshape(each, [-1]), tf.int64) for each in asked]
    together = tf.concat(flat, 0)
    message = f"indices are not in [0, {num_rows})"
    in_table = tf.logical_and(together >= 0, together < num_rows)
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(in_table), [message, together])]):
        found, places = tf.unique(tf.identity(together), out_idx=tf.int64)
    split = tf.split(places, [tf.size(each) for each in flat], num=len(flat))
    return found, [tf.reshape(own, tf.shape(each)) for own, each in zip(split, asked, strict=True)]


def compensate(
    rule: Rule,
    gradient: Sequence[tf.Tensor],
    now: tf.Tensor,
    then: tf.Tensor,
    mean_square: tf.Variable | None,
    delay: tf.Tensor,
    count: tf.Tensor,
    lengths: Sequence[int],
) -> tuple[tf.Tensor, tf.Tensor]:
    """See `nfdt.compensation.compensate`."""
    filled = [tf.pad(tf.reshape(t, [-1]), [[0, n - tf.size(t)]]) for t, n in zip(gradient, lengths, strict=True)]
    given = tf.concat(filled, 0)
    g = _wide(given)
    s: tf.Tensor | None = None
    noted: list[tf.Operation] = []
    if mean_square is not None:
        s = _mean(mean_square.read_value(), g)
        noted = [mean_square.assign(s, read_value=False)]

    def late() -> tuple[tf.Tensor, tf.Tensor]:
        c = _factor(rule, g, _wide(now) - _wide(then), s, count) * g
        corrections, gradients = ([_square(part) for part in tf.split(a, list(lengths))] for a in (c, g))
        scales = [_scale(*each, rule.clip) for each in zip(corrections, gradients, strict=True)]
        by_entry = tf.repeat(tf.cast(tf.stack(scales), c.dtype), list(lengths))
        kept = tf.add_n([_times(scale * scale, of) for scale, of in zip(scales, corrections, strict=True)])
        squares = tf.cast(tf.stack([kept, tf.add_n(gradients)]), tf.float32)
        return tf.cast(g + by_entry * c, given.dtype), squares

    with tf.control_dependencies(noted):
        compensated, squares = tf.cond(delay > 0, late, lambda: (tf.identity(given), tf.zeros([2])))
        return tf.ensure_shape(compensated, now.shape), squares


def compensate_rows(
    rule: Rule,
    values: tf.Tensor,
    indices: tf.Tensor,
    now: tf.Tensor,
    then: tf.Tensor,
    mean_square: tf.Variable | None,
    delay: tf.Tensor,
    count: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """See `nfdt.compensation.compensate_rows`."""
    rows, places = tf.unique(indices)
    wide = _wide(values)
    g = tf.math.unsorted_segment_sum(wide, places, tf.size(rows))
    s: tf.Tensor | None = None
    noted: list[tf.Operation] = []
    if mean_square is not None:
        s = _mean(tf.gather(mean_square.read_value(), rows), g)
        noted = [tf.raw_ops.ResourceScatterUpdate(resource=mean_square.handle, indices=rows, updates=s)]

    def late() -> tuple[tf.Tensor, tf.Tensor]:
        # Values of the same row have the same distance.
        first = tf.math.unsorted_segment_min(tf.range(tf.size(indices)), places, tf.size(rows))
        moved = _wide(tf.gather(now, first)) - _wide(tf.gather(then, first))
        factor = _factor(rule, g, moved, s, count)
        corrections, gradients = _square(factor * g), _square(g)
        scale = _scale(corrections, gradients, rule.clip)
        compensated = wide * (1 + tf.cast(scale, wide.dtype) * tf.gather(factor, places))
        squares = tf.cast(tf.stack([_times(scale * scale, corrections), gradients]), tf.float32)
        return tf.cast(compensated, values.dtype), squares

    with tf.control_dependencies(noted):
        return tf.cond(delay > 0, late, lambda: (tf.identity(values), tf.zeros([2])))


def _wide(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in 32 bits at least: squares of small 16-bit numbers are zero, of large ones infinite."""
    return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)


def _mean(before: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
    """Returns s after g; it does not take up overflowed values."""
    after = DECAY * before + (1 - DECAY) * g * g
    return tf.where(after <= after.dtype.max, after, before)


def _factor(rule: Rule, g: tf.Tensor, moved: tf.Tensor, s: tf.Tensor | None, count: tf.Tensor) -> tf.Tensor:
    """Returns c / g; an overflow gives no correction."""
    factor = rule.lambda0 * g
    if s is not None:
        correction = 1 - tf.pow(tf.constant(DECAY, tf.float64), tf.cast(count, tf.float64)) if rule.correct else 1.0
        factor /= tf.sqrt(s / tf.cast(correction, s.dtype) + EPSILON)
    factor *= moved
    return tf.where(tf.abs(factor * g) <= factor.dtype.max, factor, tf.zeros_like(factor))


def _square(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of squares, float64."""
    return tf.cast(tf.reduce_sum(tf.square(tensor)), tf.float64)


def _scale(correction: tf.Tensor, gradient: tf.Tensor, clip: float) -> tf.Tensor:
    """Returns the factor that shortens a correction to the clip times the gradient's length; 0 for an overflow."""
    if math.isinf(clip):
        return tf.cast(tf.math.is_finite(correction), tf.float64)
    within = correction <= clip * clip * gradient
    one = tf.ones_like(correction)
    shorter = tf.where(within, one, clip * tf.sqrt(gradient / tf.where(within, one, correction)))
    return tf.where(tf.math.is_finite(correction), shorter, tf.zeros_like(correction))


def _times(factor: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    """Returns the product; zero where the factor is, whatever the other is."""
    return tf.math.multiply_no_nan(of, factor)
