"""Sends tensors of a graph to a device of another host."""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import host_of


def carried(tensors: Sequence[tf.Tensor], source: str, target: str, rounded: bool) -> list[tf.Tensor]:
    """Returns tensors where they are computed with next; what sends and receives them, TensorFlow adds.

    Args:
        tensors: In a graph.
        source: The device on which they are.
        target: The device where they are to be.
        rounded: Whether arrays of numbers travel as 16-bit floats, if that is another host's.
    """
    rounded = rounded and host_of(source) != host_of(target)
    with tf.device(source):
        # A cast to the type that it has is the tensor itself.
        packed = [tf.cast(tensor, travelling_dtype(tensor, rounded)) for tensor in tensors]
    with tf.device(target):
        return [tf.cast(there, tensor.dtype) for there, tensor in zip(map(tf.identity, packed), tensors, strict=True)]


def travelling_dtype(tensor: tf.Tensor | tf.TensorSpec, rounded: bool) -> tf.DType:
    """Returns the type as which a tensor travels; only arrays are rounded, of 32 and 64-bit floats."""
    is_array_of_floats = tensor.dtype in (tf.float32, tf.float64) and tensor.shape.rank
    return tf.float16 if rounded and is_array_of_floats else tensor.dtype
