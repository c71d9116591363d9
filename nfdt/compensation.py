"""Computes delay compensation; formulas and sources are in `nfdt.rules`, the loop itself is in `native/compensation.h`."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fdt.base.native import optional
from nfdt import plain_operations
from nfdt.rules import DECAY, EPSILON, Rule, Strength

_NATIVE = optional("nfdt")
# For how many of the last updates the longest step of a parameter is kept.
_REMEMBERED = 256


@dataclasses.dataclass(frozen=True)
class Late:
    """What the one-pass update (`nfdt.one_pass`) needs to compensate a gradient.

    Attributes:
        rule: Only strength, λ0, correction and clip are read.
        then: The parameters that the gradient was computed from, [n].
        delay: int64 scalar.
        version: int64 scalar, the number of gradients so far, this one included.
        moved: The longest step of a parameter in each of the last updates, shaped as `unknown_moves`; this update is added.
        mean_square: As for `compensate`.
    """

    rule: Rule
    then: tf.Tensor
    delay: tf.Tensor
    version: tf.Tensor
    moved: tf.Variable
    mean_square: tf.Variable | None


def unknown_moves() -> np.ndarray:
    """Returns `Late.moved` for steps of unknown length: infinity for each.

    A NumPy array, since `tf.Variable` asks its initial value for its shape. For a tensor on another host TensorFlow waits
    without releasing Python's lock, so that even this process's heartbeat thread stops.
    """
    return np.full([_REMEMBERED], math.inf, np.float32)


def settings(rule: Rule) -> tf.Tensor:
    """Returns the rule's numbers as the operations' `settings` input, float64 [4]."""
    return tf.constant([rule.lambda0, DECAY, EPSILON, rule.clip], tf.float64)


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
    """Compensates a gradient for the distance that the weights have moved since it was computed.

    Args:
        rule: Only strength, λ0, correction and clip are read.
        gradient: One tensor for each entry of a vector.
        now: w, [n].
        then: w_bak, [n].
        mean_square: s before this gradient, [n], at least float32; updated with the gradient. None for a rule without s.
        delay: int64 scalar; at 0 the gradient only updates s.
        count: float32 scalar, how many gradients s has seen, this one included.
        lengths: How many entries of the vector each tensor takes, in order; zeros fill up a shorter tensor. Each tensor is
            clipped by itself.

    Returns:
        g̃, [n], and float32 [2], Σ c² and Σ g²; zeros without a delay.
    """
    assert (mean_square is not None) == (rule.strength is Strength.ADAPTIVE)
    if _NATIVE is None:
        return plain_operations.compensate(rule, gradient, now, then, mean_square, delay, count, lengths)
    compensated, squares = _NATIVE.ops.fdt_compensate(
        gradient=list(gradient),
        now=now,
        then=then,
        delay=delay,
        count=count,
        settings=settings(rule),
        mean_square=[] if mean_square is None else [mean_square.handle],
        correct=rule.correct,
        lengths=list(lengths),
    )
    return compensated, squares


def compensate_rows(
    rule: Rule,
    values: tf.Tensor,
    indices: tf.Tensor,
    order: tf.Tensor,
    now: tf.Tensor,
    then: tf.Tensor,
    mean_square: tf.Variable | None,
    delay: tf.Tensor,
    count: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compensates a gradient for rows of a table; all of it is clipped as one tensor.

    Several values for one row stay separate: Keras's Adam sums their squares, which differs from the square of their sum.
    Their sum is g, and each is multiplied by 1 + c / g.

    Args:
        rule: As for `compensate`.
        values: [number, ...].
        indices: The row of each value, [number].
        order: From `nfdt.rows.by_row`.
        now: w, the row of each value, [number, ...].
        then: w_bak, [number, ...].
        mean_square: s, of the whole table, [rows, ...]; as for `compensate`.
        delay: int64 scalar, as for `compensate`.
        count: float32 scalar, as for `compensate`.

    Returns:
        Compensated values, [number, ...], and float32 [2], Σ c² and Σ g²; zeros without a delay.
    """
    assert (mean_square is not None) == (rule.strength is Strength.ADAPTIVE)
    if _NATIVE is None:
        return plain_operations.compensate_rows(rule, values, indices, now, then, mean_square, delay, count)
    compensated, squares = _NATIVE.ops.fdt_compensate_rows(
        values=values,
        indices=indices,
        order=order,
        now=now,
        then=then,
        delay=delay,
        count=count,
        settings=settings(rule),
        mean_square=[] if mean_square is None else [mean_square.handle],
        correct=rule.correct,
    )
    return compensated, squares
