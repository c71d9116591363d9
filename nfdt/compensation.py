"""The arithmetic of the update rules on long vectors; formulas and sources in `nfdt.rules`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from nfdt.rules import DECAY, EPSILON, Rule, Strength


class Compensated(NamedTuple):
    """What came out for one vector.

    Attributes:
        gradient: g̃, of the type and shape of g.
        mean_square: s after this gradient; None if the rule keeps none.
        squares: float32 [2], Σ c² and Σ g².
    """

    gradient: tf.Tensor
    mean_square: tf.Tensor | None
    squares: tf.Tensor


def compensate(
    rule: Rule,
    gradient: tf.Tensor,
    now: tf.Tensor,
    then: tf.Tensor,
    mean_square: tf.Tensor | None,
    count: tf.Tensor,
    lengths: Sequence[int],
) -> Compensated:
    """Compensates a gradient for the distance that the weights have moved since it was computed.

    Args:
        rule: Strength, λ0, correction and clip are looked at.
        gradient: [n], or [rows, ...] of a table.
        now: w, same shape.
        then: w_bak, same shape.
        mean_square: s before this gradient, same shape, at least float32; None for a rule without.
        count: float32 scalar, how many gradients s has seen, this one included.
        lengths: How many entries each tensor takes of the vector, one after the other: the clip looks at each by itself. A
            table is one tensor.
    """
    # Squares of small half-precision numbers are zero, of large ones infinite.
    wide = tf.float64 if gradient.dtype == tf.float64 else tf.float32
    g, delta = tf.cast(gradient, wide), tf.cast(now, wide) - tf.cast(then, wide)
    square = g * g
    if rule.strength is Strength.ADAPTIVE:
        assert mean_square is not None
        mean_square = DECAY * mean_square + (1.0 - DECAY) * square
        shown = mean_square / tf.cast(1.0 - tf.pow(DECAY, count), wide) if rule.correct else mean_square
        correction = rule.lambda0 * square / tf.sqrt(shown + EPSILON) * delta
    else:
        correction = rule.lambda0 * square * delta
    results, squares = [], []
    pieces = zip(_parts(g, lengths), _parts(square, lengths), _parts(correction, lengths), strict=True)
    for part, part_square, part_correction in pieces:
        c_square, g_square = tf.reduce_sum(part_correction * part_correction), tf.reduce_sum(part_square)
        scale = _limit(rule.clip, c_square, g_square)
        # A correction that overflowed is no correction.
        usable = tf.math.is_finite(c_square)
        results.append(tf.where(usable, part + scale * part_correction, part))
        squares.append(tf.stack([tf.where(usable, scale * scale * c_square, 0.0), g_square]))
    result = tf.concat(results, 0) if len(results) > 1 else results[0]
    return Compensated(tf.cast(result, gradient.dtype), mean_square, tf.cast(tf.add_n(squares), tf.float32))


def _parts(vector: tf.Tensor, lengths: Sequence[int]) -> list[tf.Tensor]:
    return list(tf.split(vector, lengths)) if len(lengths) > 1 else [vector]


def _limit(clip: float, c_square: tf.Tensor, g_square: tf.Tensor) -> tf.Tensor:
    """Returns the factor that makes ‖c‖ at most κ‖g‖."""
    one = tf.ones([], c_square.dtype)
    if math.isinf(clip):
        return one
    return tf.where(c_square > 0, tf.minimum(one, clip * tf.sqrt(tf.math.divide_no_nan(g_square, c_square))), one)
