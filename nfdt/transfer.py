"""Tensors on their way to a device of another host."""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import host_of


class Transfer:
    """Brings tensors to a device, and returns when they are there.

    TensorFlow moves a tensor when something is computed from it, and does not wait for what another host computes: work would
    be handed out far ahead of what is done, and a lock would be held while gradients travel.
    """

    def __init__(self, device: str, rounded: bool = False):
        """Notes where to.

        Args:
            device: A device of this process, which shares its memory so that nothing has to travel, or of another's.
            rounded: Whether arrays of numbers travel as 16-bit floats.
        """
        self._device, self._rounded = device, rounded
        self._is_far = "/job:" in device
        self._arrive = tf.function(self._arriving, autograph=False)

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the same tensors there."""
        if not self._is_far:
            return list(tensors)
        packed = [self._packed(tensor) for tensor in tensors]
        with tf.device(self._device):
            *there, arrived = self._arrive(packed)
            # Nothing but asking for a value waits.
            arrived.numpy()
            return [tf.cast(tensor, given.dtype) for tensor, given in zip(there, tensors, strict=True)]

    def _packed(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor as it travels: a handle of its own on the same memory, unless it is rounded.

        Of one that two threads send to one host, TensorFlow waits in the second until it has arrived, with the lock that the
        first needs to tell so (`TensorHandle::RemoteAddress` and `SetRemoteShape`): both wait for ever.
        """
        with tf.device(tensor.device):
            is_far = host_of(tensor.device) != host_of(self._device)
            dtype = travelling_dtype(tensor, self._rounded and is_far)
            # A cast to the type that it has would be the handle itself.
            return tf.identity(tensor) if dtype == tensor.dtype else tf.cast(tensor, dtype)

    def _arriving(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Said here too: what a function computes is otherwise put where its inputs are, and nothing would travel yet.
        with tf.device(self._device):
            there = [tf.identity(tensor) for tensor in tensors]
            with tf.control_dependencies(there):
                return [*there, tf.zeros([])]


def travelling_dtype(tensor: tf.Tensor, rounded: bool) -> tf.DType:
    """Returns the type as which a tensor travels; only arrays are rounded, of 32 and 64-bit floats."""
    is_array_of_floats = tensor.dtype in (tf.float32, tf.float64) and tensor.shape.rank
    return tf.float16 if rounded and is_array_of_floats else tensor.dtype
