"""Tensors on their way to a device of another host."""

from collections.abc import Sequence

import tensorflow as tf


class Transfer:
    """Brings tensors to a device, and returns when they are there.

    TensorFlow moves a tensor when something is computed from it, and does not wait for what another host computes: work would
    be handed out far ahead of what is done, and a lock would be held while gradients travel.
    """

    def __init__(self, device: str):
        """Notes where to.

        Args:
            device: A device of this process, which shares its memory so that nothing has to travel, or of another's.
        """
        self._device = device
        self._is_far = "/job:" in device
        self._arrive = tf.function(self._arriving, autograph=False)

    def __call__(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the same tensors there."""
        if not self._is_far:
            return list(tensors)
        with tf.device(self._device):
            *there, arrived = self._arrive(list(tensors))
        # Nothing but asking for a value waits.
        arrived.numpy()
        return there

    def _arriving(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Said here too: what a function computes is otherwise put where its inputs are, and nothing would travel yet.
        with tf.device(self._device):
            there = [tf.identity(tensor) for tensor in tensors]
            with tf.control_dependencies(there):
                return [*there, tf.zeros([])]
