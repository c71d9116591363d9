"""Sends a script's data: arrays once, by content, and afterwards only row numbers; anything else batch by batch."""

from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fdt.client.answers import StepResult
from fdt.client.job import Job
from fdt.errors import UnsupportedError
from fdt.program.element import Element
from fdt.program.step_program import tensor_spec


class Batches(Protocol):
    """The training data of one `fit`.

    Attributes:
        element: The form of a batch for train_step: (x,), (x, y) or (x, y, sample_weight), nested.
        batch_size: Rows of a full batch; None if that is not known beforehand.
        rows: Rows of every batch; None if they differ or are not known.
        rows_told: Rows of every batch, if the data set's specs state them; plain Keras then traces its step for that number.
    """

    element: Element
    batch_size: int | None
    rows: int | None
    rows_told: int | None

    def begin(self, job: Job) -> None:
        """Starts to send data that can be sent before the first step."""

    def takes(self, item: Any) -> bool:
        """Returns whether an item of Keras's iterator has the element's form."""

    def run(self, job: Job, program: int, item: Any, results: bool = False) -> StepResult | None:
        """Runs a step, later, on an item of Keras's iterator; returns its outputs, if they are wanted."""

    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the arrays of an item of Keras's iterator."""


class ArrayBatches:
    """Arrays in memory, sent once; see `Batches`. Keras iterates over row numbers.

    Attributes:
        arrays: C-contiguous, [num_samples, ...], in the order of the element's leaves.
        num_batches: Number of batches in an epoch.
    """

    def __init__(self, structure: Any, batch_size: int, tree: Any, rows_told: int | None = None):
        """
        Args:
            structure: Nested, of arrays; None stays None.
            batch_size: Rows of a full batch.
            tree: The functions on nested structures, see `fdt.capture.keras.version.KerasVersion`.
            rows_told: See `Batches`.
        """
        self.rows_told = rows_told
        flat = tree.flatten(structure)
        self.arrays = arrays = [np.ascontiguousarray(leaf) for leaf in flat if leaf is not None]
        self.batch_size: int | None = batch_size
        self.num_batches = -(-len(arrays[0]) // batch_size)
        self.rows = batch_size if len(arrays[0]) % batch_size == 0 else None
        specs = iter([tf.TensorSpec(a.shape, tf.dtypes.as_dtype(a.dtype)) for a in arrays])
        leaves = [None if leaf is None else next(specs) for leaf in flat]
        self.element = element_of(tree.pack_sequence_as(structure, leaves), tree)
        self._binding: Future[int] | None = None

    def begin(self, job: Job) -> None:
        """Sends the arrays, in the background."""
        self._binding = job.bind_later([raw(a) for a in self.arrays], [full_spec(a) for a in self.arrays])

    def takes(self, item: Any) -> bool:
        """Returns True: row numbers always fit."""
        return True

    def run(self, job: Job, program: int, item: Any, results: bool = False) -> StepResult | None:
        """Runs a step on the rows with these numbers."""
        assert self._binding is not None
        rows = _numbers(item).astype("<i8", copy=False).tobytes()
        return job.run(program, self._binding.result(), rows, results)

    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the rows with these numbers."""
        return [array[_numbers(item)] for array in self.arrays]


class StreamedBatches:
    """Whatever Keras can iterate over; see `Batches`. Every batch is sent with its step.

    Attributes:
        specs: Nested structure of type specs, as the data set has them.
    """

    def __init__(self, specs: Any, tree: Any):
        """Reads the form of a batch.

        Args:
            specs: Nested structure of type specs.
            tree: The functions on nested structures, see `fdt.capture.keras.version.KerasVersion`.
        """
        self.specs, self.element = specs, element_of(specs, tree)
        first = next(spec for spec in tree.flatten(specs) if spec is not None)
        self.batch_size = first.shape[0] if first.shape.rank else None
        self.rows = self.rows_told = self.batch_size

    def begin(self, job: Job) -> None:
        """Nothing is sent beforehand."""

    def takes(self, item: Any) -> bool:
        """Returns whether the tensors of a batch have equal numbers of rows, if the element requires that."""
        return self.element.takes(item)

    def run(self, job: Job, program: int, item: Any, results: bool = False) -> StepResult | None:
        """Sends the batch."""
        arrays = self.encode(item)
        if not len(arrays[0]):
            raise UnsupportedError("A batch came without a sample; expected at least one row in each batch.")
        return job.feed(program, [raw(a) for a in arrays], [full_spec(a) for a in arrays], results)

    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the arrays of a batch."""
        return self.element.encode(item)


def _numbers(item: Any) -> np.ndarray:
    numbers: np.ndarray = (item[0] if isinstance(item, tuple) else item).numpy()
    return numbers


def element_of(specs: Any, tree: Any) -> Element:
    """Returns the element with these type specs, structured by a Keras generation's functions on nested structures."""
    return Element(specs, tree.flatten, tree.pack_sequence_as)


def raw(array: np.ndarray) -> Any:
    """Returns the bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)


def full_spec(array: np.ndarray) -> Any:
    """Returns the description of an array, its whole shape included."""
    return tensor_spec(tf.TensorSpec(array.shape, tf.dtypes.as_dtype(array.dtype), name="array"))


def is_numbers(leaf: Any) -> bool:
    """Returns whether a leaf of a data set is an array of numbers."""
    if not isinstance(leaf, np.ndarray) and not (tf.is_tensor(leaf) and isinstance(leaf, tf.Tensor)):
        return False
    array = np.asarray(leaf)
    try:
        return tf.dtypes.as_dtype(array.dtype) not in (tf.string, tf.resource, tf.variant) and not array.dtype.hasobject
    except TypeError:
        return False
