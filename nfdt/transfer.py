"""Sends tensors of a graph to a device of another host."""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import host_of


def carried(tensors: Sequence[tf.Tensor], source: str, target: str, rounded: bool) -> list[tf.Tensor]:
    """Returns tensors on another device; TensorFlow adds the operations that send and receive them.

    Args:
        tensors: In a graph.
        source: The device that holds them.
        target: The device to send them to.
        rounded: Whether arrays of floats travel between hosts as 16-bit floats.
    """
    rounded = rounded and host_of(source) != host_of(target)
    with tf.device(source):
        # A cast to a tensor's own type returns the tensor itself.
        packed = [tf.cast(tensor, travelling_dtype(tensor, rounded)) for tensor in tensors]
    with tf.device(target):
        return [tf.cast(there, tensor.dtype) for there, tensor in zip(map(tf.identity, packed), tensors, strict=True)]


def travelling_dtype(tensor: tf.Tensor | tf.TensorSpec, rounded: bool) -> tf.DType:
    """Returns the type in which a tensor travels; only arrays of 32 and 64-bit floats are rounded."""
    is_array_of_floats = tensor.dtype in (tf.float32, tf.float64) and tensor.shape.rank
    return tf.float16 if rounded and is_array_of_floats else tensor.dtype
