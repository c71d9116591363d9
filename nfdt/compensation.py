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
    # Code is compiled for shapes; for each number of rows anew it would take longer than it saves.
    compute = _compiled_correction if gradient.shape.is_fully_defined() else _correction
    correction, mean_square = compute(rule, gradient, now, then, mean_square, count)
    wide = tf.cast(gradient, correction.dtype)
    # Sums are left to TensorFlow's own kernels, which are quicker at them than compiled code.
    pieces = _parts(correction, lengths)
    c_squares = tf.stack([2 * tf.nn.l2_loss(piece) for piece in pieces])
    g_squares = tf.stack([2 * tf.nn.l2_loss(piece) for piece in _parts(wide, lengths)])
    # A correction that overflowed is no correction.
    scales = tf.where(tf.math.is_finite(c_squares), _limit(rule.clip, c_squares, g_squares), tf.zeros_like(c_squares))

    def limited() -> tf.Tensor:
        scaled = [
            tf.where(scale > 0, scale * piece, tf.zeros_like(piece))
            for piece, scale in zip(pieces, tf.unstack(scales), strict=True)
        ]
        return tf.concat(scaled, 0)

    correction = tf.cond(tf.reduce_all(tf.equal(scales, 1)), lambda: correction, limited)
    c_sum = tf.reduce_sum(tf.where(scales > 0, scales * scales * c_squares, tf.zeros_like(scales)))
    squares = tf.cast(tf.stack([c_sum, tf.reduce_sum(g_squares)]), tf.float32)
    return Compensated(tf.cast(wide + correction, gradient.dtype), mean_square, squares)


def _correction(
    rule: Rule,
    gradient: tf.Tensor,
    now: tf.Tensor,
    then: tf.Tensor,
    mean_square: tf.Tensor | None,
    count: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns c and s, element by element."""
    # Squares of small half-precision numbers are zero, of large ones infinite.
    wide = tf.float64 if gradient.dtype == tf.float64 else tf.float32
    g, delta = tf.cast(gradient, wide), tf.cast(now, wide) - tf.cast(then, wide)
    square = g * g
    if rule.strength is not Strength.ADAPTIVE:
        return rule.lambda0 * square * delta, None
    assert mean_square is not None
    mean_square = DECAY * mean_square + (1.0 - DECAY) * square
    shown = mean_square / tf.cast(1.0 - tf.pow(DECAY, count), wide) if rule.correct else mean_square
    return rule.lambda0 * square / tf.sqrt(shown + EPSILON) * delta, mean_square


_compiled_correction = tf.function(_correction, autograph=False, jit_compile=True)


def seen(gradient: tf.Tensor, mean_square: tf.Tensor) -> tf.Tensor:
    """Returns s after a gradient that needs no compensation."""
    return (_compiled_seen if gradient.shape.is_fully_defined() else _seen)(gradient, mean_square)


def _seen(gradient: tf.Tensor, mean_square: tf.Tensor) -> tf.Tensor:
    g = tf.cast(gradient, mean_square.dtype)
    return DECAY * mean_square + (1.0 - DECAY) * (g * g)


_compiled_seen = tf.function(_seen, autograph=False, jit_compile=True)


def _parts(vector: tf.Tensor, lengths: Sequence[int]) -> list[tf.Tensor]:
    return list(tf.split(vector, lengths)) if len(lengths) > 1 else [vector]


def _limit(clip: float, c_squares: tf.Tensor, g_squares: tf.Tensor) -> tf.Tensor:
    """Returns the factors that make ‖c‖ at most κ‖g‖."""
    ones = tf.ones_like(c_squares)
    if math.isinf(clip):
        return ones
    return tf.where(c_squares > 0, tf.minimum(ones, clip * tf.sqrt(tf.math.divide_no_nan(g_squares, c_squares))), ones)
