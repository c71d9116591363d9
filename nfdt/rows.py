"""Rows of a table that a gradient has values for; a row may come more than once."""

import tensorflow as tf

from fdt.base.native import library

_NATIVE = library("nfdt")


def by_row(indices: tf.Tensor) -> tf.Tensor:
    """Returns in which order the values of rows are read, int64 [number]: by row, those of one as they came.

    Args:
        indices: Of a table's rows, [number].
    """
    return _NATIVE.ops.fdt_by_row(indices=indices)
