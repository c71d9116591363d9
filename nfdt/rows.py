"""Works on row numbers of a table: sorts a sparse gradient's values by row, and finds the distinct rows of lookups."""

from collections.abc import Sequence

import tensorflow as tf

from fdt.base.native import optional
from nfdt import plain_operations

_NATIVE = optional("nfdt")


def by_row(indices: tf.Tensor) -> tf.Tensor:
    """Returns the order that sorts values by row, int64 [number]; values of the same row keep their order.

    Args:
        indices: The row of each value, [number]; several may be of the same row.
    """
    if _NATIVE is None:
        return plain_operations.by_row(indices)
    return _NATIVE.ops.fdt_by_row(indices=indices)


def distinct(asked: Sequence[tf.Tensor], num_rows: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the distinct row numbers, int64 [number], and for each given tensor the places of its numbers among them, int64.

    Args:
        asked: Tensors of row numbers, of any shapes and integer types.
        num_rows: How many rows the table has. In the graph, a number outside of it raises what TensorFlow's own lookup raises.
    """
    if _NATIVE is None:
        return plain_operations.distinct(asked, num_rows)
    found, places = _NATIVE.ops.fdt_distinct(asked=[tf.cast(each, tf.int64) for each in asked], rows=num_rows)
    return found, list(places)
