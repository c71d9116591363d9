"""Batches of a step: rows of arrays, or rows that are read for their step; which of them go together in one call."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from fdt.program.packing import as_array
from fdt.program.row_reader import RowReader
from hfdt.division import DividedProgram, Shapes
from hfdt.loop import PackedLoop, StepLoop

# Bytes of batches of different sizes that are copied for one call.
_PACKED_BYTES = 4 << 20


class Arrays:
    """A data set's arrays, [num_samples, ...] each."""

    def __init__(self, arrays: Sequence[tf.Tensor]) -> None:
        self.arrays = arrays
        self._of_row = [tuple(array.shape[1:].as_list()) for array in arrays]
        self._row_bytes = sum(math.prod(s) * a.dtype.size for s, a in zip(self._of_row, arrays, strict=True))

    def shapes(self, num_rows: int) -> Shapes:
        """Returns the shapes of a batch's inputs."""
        return tuple((num_rows, *shape) for shape in self._of_row)

    def num_bytes(self, num_rows: int) -> int:
        """Returns the bytes of a batch's inputs."""
        return num_rows * self._row_bytes


class TakenBatch:
    """Rows of a data set's arrays.

    Attributes:
        source: The arrays.
        rows: int64 [batch].
        shapes: Those of the batch's inputs.
    """

    def __init__(self, source: Arrays, rows: np.ndarray, shapes: Shapes | None = None) -> None:
        self.source, self.rows = source, rows
        self.shapes = source.shapes(len(rows)) if shapes is None else shapes

    @property
    def num_bytes(self) -> int:
        """Bytes of all inputs."""
        return self.source.num_bytes(len(self.rows))

    def values(self) -> list[np.ndarray]:
        """Returns the inputs, [batch, ...] each; a copy only where the rows do not follow each other."""
        first, count = int(self.rows[0]), len(self.rows)
        follow = np.array_equal(self.rows, np.arange(first, first + count))
        taken = slice(first, first + count) if follow else self.rows
        return [as_array(array)[taken] for array in self.source.arrays]


class ReadBatch:
    """Rows of a data set that are read for their step alone.

    Attributes:
        shapes: Those of the batch's inputs.
    """

    def __init__(self, reader: RowReader, rows: np.ndarray) -> None:
        """
        Args:
            reader: What reads the rows.
            rows: int64 [batch].
        """
        self._reader, self._rows = reader, rows
        self.shapes: Shapes = tuple(reader.shapes(len(rows)))

    def read(self, own: slice) -> TakenBatch:
        """Reads this rank's rows; an arbitrary row stands in for each row of another rank.

        Args:
            own: The rows that this rank reads.
        """
        rows = self._rows[own]
        arrays, places = self._reader.take(rows), np.zeros(len(self._rows), np.int64)
        places[own] = np.arange(len(rows))
        if not len(rows):
            arrays = [tf.zeros([1, *array.shape[1:]], array.dtype) for array in arrays]
        return TakenBatch(Arrays(arrays), places, self.shapes)


def together_in_a_call(
    divided: DividedProgram, batches: Iterable[TakenBatch | ReadBatch], alone: bool
) -> Iterator[list[TakenBatch | ReadBatch]]:
    """Yields consecutive batches that one call of a loop runs.

    The division that a batch of a new size needs is made by its call, after the steps before it: such a batch begins one.

    Args:
        divided: The program.
        batches: The batches.
        alone: Whether each has a call of its own.
    """
    together, num_bytes = list[TakenBatch | ReadBatch](), 0
    for batch in batches:
        if together and (alone or not _goes_on(divided, together[0], batch, num_bytes)):
            yield together
            together, num_bytes = [], 0
        together.append(batch)
        num_bytes += batch.num_bytes if isinstance(batch, TakenBatch) else 0
    if together:
        yield together


def _goes_on(
    divided: DividedProgram, first: TakenBatch | ReadBatch, batch: TakenBatch | ReadBatch, num_bytes: int
) -> bool:
    """Whether a batch goes into the call of a first one, which has so many bytes already."""
    if isinstance(first, ReadBatch) or isinstance(batch, ReadBatch):
        return False
    loop = divided.known(first.shapes)
    if isinstance(loop, StepLoop):
        return batch.source is first.source and batch.shapes == first.shapes
    return isinstance(loop, PackedLoop) and loop is divided.known(batch.shapes) and num_bytes <= _PACKED_BYTES
