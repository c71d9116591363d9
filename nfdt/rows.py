"""Sorts a sparse gradient's values by their rows; a row may have several."""

import tensorflow as tf

from fdt.base.native import library

_NATIVE = library("nfdt")


def by_row(indices: tf.Tensor) -> tf.Tensor:
    """Returns the order that sorts values by row, int64 [number]; values of the same row keep their order.

    Args:
        indices: The row of each value, [number].
    """
    return _NATIVE.ops.fdt_by_row(indices=indices)
