"""Fetches rows of a table from its parameter servers, in a graph: row numbers go there, rows come back."""

import dataclasses
import itertools
from collections.abc import Sequence

import tensorflow as tf

from nfdt.devices import cpu_beside
from nfdt.rows import distinct, split
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


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of a table that one server holds: all of them, or some that follow each other.

    Attributes:
        table: Their snapshots.
        snapshot: One of these, on the server's device.
        device: The server's.
    """

    table: TableSnapshots
    snapshot: tf.Tensor
    device: str

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return int(self.table.table.shape[0])


def fetch(parts: Sequence[Part], asked: Sequence[tf.Tensor], target: str, rounded: bool) -> Fetched:
    """Fetches the rows that lookups ask for, each once; a value on the table's own device is not copied.

    Args:
        parts: The table, in the order of its rows.
        asked: Each lookup's row numbers, on the worker's device.
        target: The worker's device.
        rounded: Whether arrays of floats travel between hosts as 16-bit floats.
    """
    beside, table = cpu_beside(target), parts[0].table.table
    ends = [*itertools.accumulate(part.num_rows for part in parts)]
    with tf.device(beside):
        numbers, places = distinct(asked, ends[-1])
        row_bytes = table.shape[1:].num_elements() * travelling_dtype(table, rounded).size
        numbers = tf.cast(numbers, tf.int32 if ends[-1] <= tf.int32.max else tf.int64)
        num_bytes = tf.cast(tf.size(numbers), tf.float64) * (row_bytes + numbers.dtype.size)
    if [part.device for part in parts] == [target] and parts[0].table.is_value:
        with tf.device(target):
            return Fetched(tf.identity(parts[0].snapshot), [tf.identity(each) for each in asked], num_bytes)
    with tf.device(beside):
        # Each server gets the numbers of its own rows; these come one server's after the other's.
        own = split(tf.range(tf.size(numbers)), numbers, [0, *ends[:-1]])
        if len(parts) > 1:
            moved = tf.math.invert_permutation(tf.concat([order for order, _ in own], 0))
            places = [tf.gather(moved, place) for place in places]
    here = []
    for part, (_, wanted) in zip(parts, own, strict=True):
        (there,) = carried([wanted], beside, part.device, rounded=False)
        with tf.device(part.device):
            rows = part.table.rows(part.snapshot, there)
        here += carried([rows], part.device, target, rounded)
    with tf.device(target):
        cast = [tf.cast(place, each.dtype) for place, each in zip(places, asked, strict=True)]
        return Fetched(here[0] if len(here) == 1 else tf.concat(here, 0), cast, num_bytes)
