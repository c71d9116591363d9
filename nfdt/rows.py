"""Works on row numbers of a table: sorts a sparse gradient's values by row, finds the distinct rows of lookups, and finds the
servers of a table that several servers hold."""

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


def holders(row_numbers: tf.Tensor, starts: Sequence[int]) -> tf.Tensor:
    """Returns which part of a table each row is in, int32 [number].

    Args:
        row_numbers: [number].
        starts: The first row of each part, ascending; the first part's is 0.
    """
    return tf.searchsorted(tf.constant(starts, row_numbers.dtype), row_numbers, side="right") - 1


def split(values: tf.Tensor, row_numbers: tf.Tensor, starts: Sequence[int]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Divides a sparse gradient between the parts of its table; values of one row keep their order.

    Args:
        values: [number, ...].
        row_numbers: The row of each value, [number].
        starts: As for `holders`.

    Returns:
        For each part the values, and their rows among the part's.
    """
    if len(starts) == 1:
        return [(values, row_numbers)]
    where = holders(row_numbers, starts)
    parts = tf.dynamic_partition(values, where, len(starts))
    numbers = tf.dynamic_partition(row_numbers, where, len(starts))
    return [(of_part, own - start) for of_part, own, start in zip(parts, numbers, starts, strict=True)]
