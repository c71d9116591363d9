"""Arithmetic of losses that are no mean over samples: what a worker's part must be divided by."""

from typing import Any

import tensorflow as tf

from fdt.holes import Holes


def sum_loss(holes: Holes, loss: tf.Tensor) -> tf.Tensor:
    """Returns a sum over this worker's samples such that its share of it is its part of the sum over all."""
    return loss / nonzero(holes.share, loss.dtype)


def correction(holes: Holes, divisor: tf.Tensor) -> tf.Tensor:
    """Returns the factor from a mean over this worker's divisor to its part of the mean over everybody's."""
    divisor = tf.stop_gradient(divisor)
    return tf.math.divide_no_nan(divisor, nonzero(holes.share, divisor.dtype) * holes.sum(divisor))


def nonzero(share: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the share to divide by.

    A worker without samples computes on a stand-in; its loss only has to be finite, its share takes it away.
    """
    return tf.cast(tf.where(share > 0, share, tf.ones_like(share)), dtype)


def times(gradient: Any, factor: Any) -> Any:
    """Returns a gradient, dense or of rows, times a number."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
