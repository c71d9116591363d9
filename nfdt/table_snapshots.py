"""Takes snapshots of a shard's tables, and reads rows of them.

A snapshot of a table is one tensor on the shard: the table's value, or, of a table whose updates write some of its rows, a
version (`native/versions.cc`), which costs what is written while it is held. Such a table is never read as a whole while it
trains: TensorFlow copies one whose rows are written at each such read.
"""

from typing import Any, Protocol

import tensorflow as tf


class TableSnapshots(Protocol):
    """The snapshots of one table.

    Attributes:
        table: The table.
        spec: The TensorSpec of a snapshot.
        is_value: Whether a snapshot is the table's value.
    """

    table: tf.Variable
    spec: tf.TensorSpec
    is_value: bool

    def take(self) -> tf.Tensor:
        """Returns a snapshot of the table as it is now."""

    def rows(self, snapshot: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of a snapshot, [number, ...]; `numbers` are [number]."""

    def rows_now(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of the table as they are now, [number, ...]; `numbers` are [number]."""

    def before_update(self, numbers: tf.Tensor) -> None:
        """Notes that the table's update is about to write rows, [number]; call it for every update."""

    def before_assignment(self) -> None:
        """Notes that the table is about to be set: what snapshots have not kept of it is lost."""


class Values:
    """Snapshots that are values. See `TableSnapshots`."""

    is_value = True

    def __init__(self, table: tf.Variable):
        self.table, self.spec = table, tf.TensorSpec(table.shape, table.dtype)

    def take(self) -> tf.Tensor:
        """Returns the table's value."""
        return self.table.read_value()

    def rows(self, snapshot: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of a value."""
        return tf.gather(snapshot, numbers)

    def rows_now(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of the current value."""
        # After a lookup in the variable itself, TensorFlow copies the variable at every later read.
        return tf.gather(self.table.read_value(), numbers)

    def before_update(self, numbers: tf.Tensor) -> None:
        """Does nothing."""

    def before_assignment(self) -> None:
        """Does nothing."""


class Versions:
    """Snapshots that are versions. See `TableSnapshots`."""

    spec = tf.TensorSpec([], tf.variant)
    is_value = False

    def __init__(self, table: tf.Variable, operations: Any):
        """
        Args:
            table: On a CPU.
            operations: The compiled ones.
        """
        self.table, self._operations = table, operations
        self._newest = tf.Variable(operations.fdt_first_version(), trainable=False)

    def take(self) -> tf.Tensor:
        """Returns the newest version."""
        return self._newest.read_value()

    def rows(self, snapshot: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of a version."""
        held = self._operations.fdt_rows_of_version(
            table=self.table.handle, version=snapshot, rows=numbers, T=self.table.dtype
        )
        return tf.ensure_shape(held, [None, *self.table.shape[1:]])

    def rows_now(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of the newest version."""
        return self.rows(self.take(), numbers)

    def before_update(self, numbers: tf.Tensor) -> None:
        """Keeps the rows, and begins a version."""
        self._begin(numbers, False)

    def before_assignment(self) -> None:
        """Begins a version: rows that older ones have not kept are lost."""
        self._begin(tf.zeros([0], tf.int32), True)

    def _begin(self, numbers: tf.Tensor, lost: bool) -> None:
        newest = self._newest.read_value()
        self._newest.assign(
            self._operations.fdt_next_version(table=self.table.handle, newest=newest, rows=numbers, all=lost)
        )
