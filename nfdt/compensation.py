"""The arithmetic of the update rules; formulas and sources in `nfdt.rules`, and the loop itself in `native/compensation.h`."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fdt.base.native import library
from nfdt.rules import DECAY, EPSILON, Rule, Strength

_NATIVE = library("nfdt")


# Delays up to which it is remembered how far the parameters have moved since.
_REMEMBERED = 256


@dataclasses.dataclass(frozen=True)
class Late:
    """What a gradient is compensated by where its update is one pass over memory (`nfdt.one_pass`).

    Attributes:
        rule: Strength, λ0, correction and clip are looked at.
        then: The parameters that the gradient was computed from, [n].
        delay: int64 scalar.
        version: int64 scalar, how many gradients there have been, this one included.
        moved: How far the longest step of each of the last updates went, as `unknown_moves` has it; takes note of this one.
        mean_square: As `compensate` has it.
    """

    rule: Rule
    then: tf.Tensor
    delay: tf.Tensor
    version: tf.Tensor
    moved: tf.Variable
    mean_square: tf.Variable | None


def unknown_moves() -> np.ndarray:
    """Returns what `Late` remembers of steps of which nothing is known: they may have gone anywhere.

    An array, since a variable asks what it is set to for its shape: a tensor on another host has to be waited for, and
    TensorFlow lets no other thread of Python run meanwhile, not even the one that says that this process is alive.
    """
    return np.full([_REMEMBERED], math.inf, np.float32)


def settings(rule: Rule) -> tf.Tensor:
    """Returns the numbers of a rule that the operations look at."""
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
        rule: Strength, λ0, correction and clip are looked at.
        gradient: Of each tensor of a vector.
        now: w, [n].
        then: w_bak, alike.
        mean_square: s before this gradient, [n], at least float32, which takes note of the gradient; None for a rule without.
        delay: int64 scalar; of a gradient that comes without, only s takes note.
        count: float32 scalar, how many gradients s has seen, this one included.
        lengths: How many entries each tensor takes of the vector, one after the other, with zeros behind them if it has fewer:
            the clip looks at each by itself.

    Returns:
        g̃, [n], and float32 [2], Σ c² and Σ g²; zeros without a delay.
    """
    assert (mean_square is not None) == (rule.strength is Strength.ADAPTIVE)
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
    """Compensates what a gradient has for rows of a table, which is one tensor to the clip.

    Several values for one row stay several: Keras's Adam adds up the squares of each, which the square of their sum is not.
    Their sum is g, and each is multiplied by 1 + c / g.

    Args:
        rule: As of `compensate`, like what is not described here.
        values: [number, ...].
        indices: Of their rows, [number].
        order: Of `nfdt.rows.by_row`.
        now: The whole table, [rows, ...].
        then: Like it.
        mean_square: Like it.
        delay: int64 scalar.
        count: float32 scalar.

    Returns:
        Compensated values, [number, ...], and float32 [2], Σ c² and Σ g²; zeros without a delay.
    """
    assert (mean_square is not None) == (rule.strength is Strength.ADAPTIVE)
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
