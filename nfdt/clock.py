"""Reads a host's clock in a graph."""

import tensorflow as tf
from tensorflow.python.framework import config

from fdt.base.native import optional

_NATIVE = optional("nfdt")


def now_s() -> tf.Tensor:
    """Returns the time by the clock of the CPU that computes it, in seconds; only differences mean anything.

    Where operations have to be deterministic, TensorFlow refuses its own clock; without a compiler the time is 0 there.
    """
    if _NATIVE is not None:
        return _NATIVE.ops.fdt_time()
    return tf.constant(0.0, tf.float64) if config.is_op_determinism_enabled() else tf.timestamp()
