"""Sends a script's data: arrays, or names of files that workers read, once, then row numbers; anything else batch by batch."""

import abc
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fdt.base import file_identity
from fdt.client.answers import StepResult
from fdt.client.job import Job
from fdt.errors import UnsupportedError, WorkerError
from fdt.program.element import Element
from fdt.program.row_function import RowFiles, packed_texts
from fdt.program.row_reader import RowReader, reader_here
from fdt.v1 import job_pb2, program_pb2


class Batches(Protocol):
    """The training data of one `fit`.

    Attributes:
        element: The form of a batch for train_step: (x,), (x, y) or (x, y, sample_weight), nested.
        batch_size: Rows of a full batch; None if that is not known beforehand.
        rows: Rows of every batch, if plain Keras knows them and traces its step for that number; None if it does not.
    """

    element: Element
    batch_size: int | None
    rows: int | None

    def begin(self, job: Job) -> None:
        """Starts to send data that can be sent before the first step."""

    def takes(self, item: Any) -> bool:
        """Returns whether an item of Keras's iterator has the element's form."""

    def run(self, job: Job, program: int, item: Any, results: bool = False) -> StepResult | None:
        """Runs a step, later, on an item of Keras's iterator; returns its outputs, if they are wanted."""

    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the arrays of an item of Keras's iterator."""


class RowBatches(abc.ABC):
    """Data of which Keras iterates over row numbers; see `Batches`.

    Attributes:
        num_rows: Rows of the data.
        num_batches: Number of batches in an epoch.
        shapes: Shapes of the arrays of a full batch.
        way: How workers get the rows, in words.
    """

    way: str
    element: Element
    shapes: list[tuple[int, ...]]

    def __init__(self, num_rows: int, batch_size: int, rows: int | None) -> None:
        self.num_rows, self.rows = num_rows, rows
        self.batch_size: int | None = batch_size
        self.num_batches = -(-num_rows // batch_size)
        self._binding: Future[int] | None = None

    @abc.abstractmethod
    def begin(self, job: Job) -> None:
        """See `Batches`: sets `_binding`."""

    def takes(self, item: Any) -> bool:
        """Returns True: row numbers always fit."""
        return True

    def run(self, job: Job, program: int, item: Any, results: bool = False) -> StepResult | None:
        """Runs a step on the rows with these numbers."""
        assert self._binding is not None
        rows = _numbers(item).astype("<i8", copy=False).tobytes()
        return job.run(program, self._binding.result(), rows, results)

    @abc.abstractmethod
    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the rows with these numbers."""

    @abc.abstractmethod
    def place(self) -> str:
        """Returns where the data are read, in words."""


class ArrayBatches(RowBatches):
    """Arrays in memory, sent once; see `Batches`.

    Attributes:
        arrays: C-contiguous, [num_samples, ...], in the order of the element's leaves.
    """

    way = "that are sent once"

    def __init__(self, structure: Any, batch_size: int, tree: Any, rows: int | None = None):
        """
        Args:
            structure: Nested, of arrays; None stays None.
            batch_size: Rows of a full batch.
            tree: The functions on nested structures, see `fdt.capture.keras.version.KerasVersion`.
            rows: See `Batches`.
        """
        flat = tree.flatten(structure)
        self.arrays = arrays = [np.ascontiguousarray(leaf) for leaf in flat if leaf is not None]
        super().__init__(len(arrays[0]), batch_size, rows)
        self.shapes = [(min(batch_size, len(arrays[0])), *array.shape[1:]) for array in arrays]
        specs = iter([tf.TensorSpec(a.shape, tf.dtypes.as_dtype(a.dtype)) for a in arrays])
        leaves = [None if leaf is None else next(specs) for leaf in flat]
        self.element = element_of(tree.pack_sequence_as(structure, leaves), tree)

    @classmethod
    def cut_by_keras(cls, structure: Any, batch_size: int, tree: Any) -> "ArrayBatches":
        """Returns the batches into which Keras cuts arrays: it knows how many rows they have if all have as many."""
        batches = cls(structure, batch_size, tree)
        batches.rows = batch_size if batches.num_rows % batch_size == 0 else None
        return batches

    def begin(self, job: Job) -> None:
        """Sends the arrays, in the background."""
        self._binding = job.bind_later([raw(a) for a in self.arrays], [full_spec(a) for a in self.arrays])

    def are_at(self, job: Job) -> bool:
        """Returns whether a job has all of the arrays."""
        return job.has([raw(a) for a in self.arrays], [full_spec(a) for a in self.arrays])

    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the rows with these numbers."""
        return [array[_numbers(item)] for array in self.arrays]

    def place(self) -> str:
        size = sum(array.nbytes for array in self.arrays)
        return f"arrays of {size / 1e6:.1f} MB, sent once; then row numbers, in the script's order"


class ReadBatches(RowBatches):
    """Rows that workers read from files and compute; see `Batches`. What is sent once is names and a function."""

    way = "that they read from files"

    def __init__(self, files: RowFiles, specs: Any, batch_size: int, tree: Any, rows: int | None = None):
        """
        Args:
            files: What the rows are made of.
            specs: Nested structure of a batch's type specs.
            batch_size: Rows of a full batch.
            tree: The functions on nested structures, see `fdt.capture.keras.version.KerasVersion`.
            rows: See `Batches`.
        """
        super().__init__(files.num_rows, batch_size, rows)
        self._files = files
        full = min(batch_size, files.num_rows)
        self.shapes = [(full, *spec.shape[1:]) for spec in tree.flatten(specs) if spec is not None]
        self.element = element_of(specs, tree)
        self._identified = False
        self._mapped: Sequence[tuple[str, str]] = ()

    def missing(self, job: Job, identified: bool, mapped: Sequence[tuple[str, str]] = ()) -> str:
        """Asks the workers whether they can read the files; returns which one they cannot, and why, or "".

        Args:
            job: The job.
            identified: Whether the pool's files may be other ones than this machine's.
            mapped: Folders of this machine, and the names that they have where the workers read them.
        """
        files, self._identified, self._mapped = self._files, identified, mapped
        there = [[renamed(path, mapped) for path in paths] for paths in files.files]
        bind, contents = job_pb2.BindData(), list[Any]()

        def described(values: np.ndarray | list[bytes]) -> job_pb2.Array:
            content = packed_texts(values) if isinstance(values, list) else np.ascontiguousarray(values)
            contents.append(raw(content))
            return job_pb2.Array(tensor=_texts_spec(values) if isinstance(values, list) else full_spec(content))

        # In the order of `fdt.transport.blobs.named_by`.
        bind.arrays.extend([described(each) for each in (*files.given, *there)])
        contents.append(files.function.SerializeToString(deterministic=True))
        bind.read.num_files = len(files.files)
        if identified:
            sizes = [np.array([file_identity.size(path) for path in paths], "<i8") for paths in files.files]
            bind.read.sizes.extend([described(each) for each in sizes])
            bind.read.digests.extend(_digests(files.files))
        if files.records is not None:
            bind.read.records.file.CopyFrom(described(files.records.file))
            bind.read.records.offset.CopyFrom(described(files.records.offset))
            bind.read.records.are_lines = files.records.are_lines
            bind.read.records.compression = files.records.compression
            if files.records.length is not None:
                bind.read.records.length.CopyFrom(described(files.records.length))
        data, missing = job.bind_rows(bind, contents)
        self._binding = Future()
        self._binding.set_result(data)
        return missing

    def begin(self, job: Job) -> None:
        """Sends names and function to a job that lacks them."""
        missing = self.missing(job, self._identified, self._mapped)
        if missing:
            raise WorkerError(f"The workers could read the files of the data, and cannot now: {missing}")

    def encode(self, item: Any) -> list[np.ndarray]:
        """Reads the rows with these numbers on this machine."""
        return [np.ascontiguousarray(values) for values in self._reader.take(_numbers(item))]

    @functools.cached_property
    def _reader(self) -> RowReader:
        return reader_here(self._files, os.cpu_count() or 1)

    def place(self) -> str:
        return f"{self.num_rows:,} rows, which the workers read from files and compute; row numbers are sent"


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
        self.rows = self.batch_size

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
        return feed(job, program, arrays, results)

    def encode(self, item: Any) -> list[np.ndarray]:
        """Returns the arrays of a batch."""
        return self.element.encode(item)


def _numbers(item: Any) -> np.ndarray:
    numbers: np.ndarray = (item[0] if isinstance(item, tuple) else item).numpy()
    return numbers


def feed(job: Job, program: int, arrays: Sequence[np.ndarray], results: bool) -> StepResult | None:
    """Runs a step on C-contiguous arrays that are sent with it; see `Job.feed`."""
    return job.feed(program, [raw(a) for a in arrays], [full_spec(a) for a in arrays], results)


def renamed(path: bytes, mapped: Sequence[tuple[str, str]]) -> bytes:
    """Returns the name that a file has where the workers read it.

    Args:
        path: Its absolute path here.
        mapped: Folders here, and their names there; of several that hold the file, the innermost counts.
    """
    within = [(os.fsencode(here), os.fsencode(there)) for here, there in mapped]
    holding = [pair for pair in within if path.startswith(pair[0].rstrip(b"/") + b"/")]
    if not holding:
        return path
    here, there = max(holding, key=lambda pair: len(pair[0].rstrip(b"/")))
    return there.rstrip(b"/") + path[len(here.rstrip(b"/")) :]


def _texts_spec(texts: Sequence[bytes]) -> program_pb2.Tensor:
    return program_pb2.Tensor(name="texts", dtype="string", shape=[len(texts)])


def _digests(files: Sequence[Sequence[bytes]]) -> Iterator[job_pb2.FileDigest]:
    for place, paths in enumerate(files):
        for row in file_identity.sampled(len(paths)):
            yield job_pb2.FileDigest(file=place, row=row, digest=file_identity.digest(paths[row]))


def element_of(specs: Any, tree: Any) -> Element:
    """Returns the element with these type specs, structured by a Keras generation's functions on nested structures."""
    return Element(specs, tree.flatten, tree.pack_sequence_as)


def raw(array: np.ndarray) -> Any:
    """Returns the bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)


def full_spec(array: np.ndarray) -> Any:
    """Returns the description of an array, its whole shape included."""
    return program_pb2.Tensor(name="array", dtype=_name_of(array.dtype), shape=array.shape)


@functools.cache
def _name_of(dtype: np.dtype) -> str:
    name: str = tf.dtypes.as_dtype(dtype).name
    return name


def is_numbers(leaf: Any) -> bool:
    """Returns whether a leaf of a data set is an array of numbers."""
    if not isinstance(leaf, np.ndarray) and not (tf.is_tensor(leaf) and isinstance(leaf, tf.Tensor)):
        return False
    array = np.asarray(leaf)
    try:
        return tf.dtypes.as_dtype(array.dtype) not in (tf.string, tf.resource, tf.variant) and not array.dtype.hasobject
    except TypeError:
        return False
