"""Fetches rows of a table from its parameter server, in a graph: row numbers go there, rows come back."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import cpu_beside
from nfdt.rows import distinct
from nfdt.table_snapshots import TableSnapshots
from nfdt.transfer import carried, travelling_dtype


@dataclasses.dataclass(frozen=True)
class Fetched:
    """Some rows of a table, on a worker's device.

    Attributes:
        rows: [number, ...].
        places: For each lookup, where its rows are among these; of the shape and type of its row numbers.
        num_bytes: Bytes of row numbers and rows, each row once, as they travel between hosts; float64 scalar.
    """

    rows: tf.Tensor
    places: list[tf.Tensor]
    num_bytes: tf.Tensor


def fetch(
    table: TableSnapshots,
    snapshot: tf.Tensor,
    asked: Sequence[tf.Tensor],
    source: str,
    target: str,
    rounded: bool,
) -> Fetched:
    """Fetches the rows that lookups ask for, each once; a value on the table's own device is not copied.

    Args:
        table: The table's snapshots.
        snapshot: One of them, on the server's device.
        asked: Each lookup's row numbers, on the worker's device.
        source: The server's device.
        target: The worker's device.
        rounded: Whether arrays of floats travel between hosts as 16-bit floats.
    """
    beside, shape = cpu_beside(target), table.table.shape
    with tf.device(beside):
        numbers, places = distinct(asked, int(shape[0]))
        row_bytes = shape[1:].num_elements() * travelling_dtype(table.table, rounded).size
        numbers = tf.cast(numbers, tf.int32 if shape[0] <= tf.int32.max else tf.int64)
        num_bytes = tf.cast(tf.size(numbers), tf.float64) * (row_bytes + numbers.dtype.size)
    if source == target and table.is_value:
        with tf.device(target):
            return Fetched(tf.identity(snapshot), [tf.identity(each) for each in asked], num_bytes)
    (there,) = carried([numbers], beside, source, rounded=False)
    with tf.device(source):
        rows = table.rows(snapshot, there)
    (here,) = carried([rows], source, target, rounded)
    with tf.device(target):
        own = [tf.cast(place, each.dtype) for place, each in zip(places, asked, strict=True)]
    return Fetched(here, own, num_bytes)
