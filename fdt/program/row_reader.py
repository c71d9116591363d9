"""Reads and computes rows that are files, or parts of files: a `tf.data` pipeline that runs ahead of the steps.

Row numbers of batches go in, in the order of the steps; tensors of the batches come out. The files are opened here, outside
the function of a row, which only gets their content.
"""

import collections
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.errors import ProtocolError
from fdt.program import row_function
from fdt.program.compressed_file import CompressedError, CompressedFiles
from fdt.program.engine import bound_arrays
from fdt.program.record_index import Records
from fdt.program.row_function import RowFiles
from fdt.program.step_program import shape_of
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2

# Batches that are computed at once, and that wait for their steps.
_AT_ONCE, _WAITING = 2, 1
# Batches whose row numbers may wait; an engine is told of a few at a time.
_TOLD = 4096
_TEXT = "string"
# Reads a part of a file's content, given its length and where it begins.
_Read = Callable[[int, int], bytes]
_CHANGED = "A file of the data has been changed, where the pool is, since the training began:"


class UnreadableRowError(Exception):
    """A row cannot be read or computed; the script is to get TensorFlow's error at the row's step.

    Attributes:
        step_code: TensorFlow's code of the error.
    """

    def __init__(self, error: tf.errors.OpError) -> None:
        super().__init__(error.message)
        self.step_code = int(error.error_code)


class Column:
    """One value for each row: an array's row, or a text."""

    def __init__(self, tensor: tf.Tensor, places: tf.Tensor | None = None) -> None:
        """
        Args:
            tensor: [num_rows, ...]; or all texts in one.
            places: int64 [num_rows + 1], where each text begins and the last one ends; None for an array.
        """
        self._tensor, self._places = tensor, places

    def row(self, number: tf.Tensor) -> tf.Tensor:
        """Returns a row's value, in a graph."""
        if self._places is None:
            return tf.gather(self._tensor, number)
        begin = self._places[number]
        return tf.strings.substr(self._tensor, begin, self._places[number + 1] - begin)


def columns(blobs: BlobStore, arrays: Sequence[job_pb2.Array]) -> list[Column]:
    """Returns bound arrays, texts among them, as columns.

    Raises:
        ProtocolError: An array does not lie in its blob.
    """
    numbers = iter(bound_arrays(blobs, [array for array in arrays if array.tensor.dtype != _TEXT]))
    return [_texts(blobs, array) if array.tensor.dtype == _TEXT else Column(next(numbers)) for array in arrays]


def _texts(blobs: BlobStore, array: job_pb2.Array) -> Column:
    return text_column(blobs.open(array.blob), int(array.tensor.shape[0]))


def text_column(content: np.ndarray, length: int) -> Column:
    """Returns texts as `packed_texts` packs them as a column.

    Args:
        content: uint8.
        length: How many texts there are.
    """
    places, texts = row_function.unpacked_texts(content, length)
    with tf.device("/cpu:0"):
        return Column(tf.constant(texts), tf.constant(places, tf.int64))


class WholeFiles:
    """A file for each row."""

    def __init__(self, names: Column, sizes: Column | None = None) -> None:
        """
        Args:
            names: Absolute paths.
            sizes: Their sizes in bytes; a file of another size is an error. None where it may change.
        """
        self._names, self._sizes = names, sizes

    def beforehand(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns tensors [batch] of what is read for all rows of a batch together, in a graph."""
        del rows
        return ()

    def content(self, number: tf.Tensor) -> tf.Tensor:
        """Returns the content of a row's file, in a graph.

        Args:
            number: The row's.
        """
        name = self._names.row(number)
        content = tf.io.read_file(name)
        if self._sizes is None:
            return content
        is_same = tf.equal(tf.cast(tf.strings.length(content), tf.int64), self._sizes.row(number))
        with tf.control_dependencies([tf.debugging.Assert(is_same, [_CHANGED, name])]):
            return tf.identity(content)


class RecordsOfFiles:
    """A record for each row."""

    def __init__(self, names: Column, file: Column, offset: Column) -> None:
        """
        Args:
            names: Absolute paths of TFRecord files.
            file: Which of these a row's record is in.
            offset: Where in the file it begins.
        """
        self._names, self._file, self._offset = names, file, offset

    def beforehand(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """See `WholeFiles.beforehand`."""
        del rows
        return ()

    def content(self, number: tf.Tensor) -> tf.Tensor:
        """Returns a row's record, in a graph; TensorFlow compares its checksums."""
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=self._names.row(tf.cast(self._file.row(number), tf.int64))[None],
            compression_type="",
            # Nothing is read ahead: the next record may be anybody's.
            buffer_size=tf.constant(0, tf.int64),
            byte_offsets=self._offset.row(number)[None],
        )
        kinds = {"output_types": [tf.string], "output_shapes": [tf.TensorShape([])]}
        first = tf.raw_ops.TakeDataset(input_dataset=records, count=tf.constant(1, tf.int64), **kinds)
        content: tf.Tensor = tf.raw_ops.DatasetToSingleElement(dataset=first, **kinds)[0]
        return content


class PartsOfFiles:
    """A part of a file for each row: a line, or a record of a length that is known.

    Those of a batch are read together, and not by TensorFlow: that opens the file for each of them, which takes longer than to
    compute a row of a few bytes.
    """

    def __init__(self, names: Column, file: Column, paths: Sequence[bytes], records: Records) -> None:
        """
        Args:
            names: Absolute paths.
            file: Which of these a row's part is in.
            paths: The absolute paths.
            records: Where the rows' parts lie.
        """
        self._names, self._file, self._paths, self._records = names, file, paths, records
        self._contents = CompressedFiles(paths, records.compression) if records.compression else None

    def beforehand(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the rows' contents, and which of them cannot be had as they were; see `WholeFiles`."""
        contents, lost = tf.numpy_function(self._read, [rows], [tf.string, tf.bool], stateful=False)
        return tf.ensure_shape(contents, [None]), tf.ensure_shape(lost, [None])

    def content(self, number: tf.Tensor, content: tf.Tensor, is_lost: tf.Tensor) -> tf.Tensor:
        """Returns a row's content, in a graph.

        Args:
            number: The row's.
            content: What was read beforehand.
            is_lost: Whether that is not what it was.
        """

        def raised() -> tf.Tensor:
            name = self._names.row(tf.cast(self._file.row(number), tf.int64))
            # Of a file that cannot be read the error is TensorFlow's; what is read is needed, or else it would not be read.
            is_read = tf.strings.length(tf.io.read_file(name)) >= 0
            with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(is_read), [_CHANGED, name])]):
                return tf.identity(content)

        checked: tf.Tensor = tf.cond(is_lost, raised, lambda: tf.identity(content))
        return checked

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        contents, lost = np.full(len(rows), b"", object), np.zeros(len(rows), bool)
        by_file = collections.defaultdict[int, list[int]](list)
        for place, file in enumerate(self._records.file[rows].tolist()):
            by_file[file].append(place)
        for file, places in by_file.items():
            for place, part in zip(places, self._parts(file, rows[places]), strict=True):
                contents[place], lost[place] = part or b"", part is None
        return contents, lost

    def _parts(self, file: int, rows: np.ndarray) -> list[bytes | None]:
        """Returns the parts of some rows of a file; None for each that is not what it was."""
        records = self._records
        assert records.length is not None
        part = _line if records.are_lines else _part
        offsets, lengths = records.offset[rows].tolist(), records.length[rows].tolist()
        try:
            with self._opened(file) as read:
                return [part(read, *span) for span in zip(offsets, lengths, strict=True)]
        except (OSError, CompressedError):
            return [None] * len(rows)

    @contextlib.contextmanager
    def _opened(self, file: int) -> Iterator[_Read]:
        """Within it, what it yields reads parts of a file's content."""
        if self._contents is not None:
            yield functools.partial(self._contents.read, file)
            return
        descriptor = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield functools.partial(os.pread, descriptor)
        finally:
            os.close(descriptor)


def _part(read: _Read, offset: int, length: int) -> bytes | None:
    found = read(length, offset)
    return found if len(found) == length else None


def _line(read: _Read, offset: int, length: int) -> bytes | None:
    # With what has to stand before and behind it.
    before = min(offset, 1)
    found = read(before + length + 1, offset - before)
    line = found[before : before + length]
    is_between_breaks = found[:before] == b"\n" * before and found[before + length :] in (b"", b"\n")
    is_line = is_between_breaks and len(line) == length and b"\n" not in line
    return line.replace(b"\r", b"") if is_line else None


Files = WholeFiles | RecordsOfFiles | PartsOfFiles


def files_of_records(paths: Sequence[bytes], records: Records) -> Files:
    """Returns what reads the records of rows.

    Args:
        paths: Absolute paths of the files.
        records: Where the rows lie in them.

    Raises:
        ProtocolError: A row lies in none of them.
    """
    num_rows = len(records.offset)
    lengths = records.length if records.length is not None else np.zeros(num_rows, np.int64)
    if not len(records.file) == len(lengths) == num_rows or (
        num_rows and not _are_within(records, lengths, len(paths))
    ):
        raise ProtocolError(f"Rows do not lie in their files. Received: {num_rows} rows, {len(paths)} files")
    names, file = text_column(row_function.packed_texts(paths), len(paths)), Column(tf.constant(records.file))
    if records.length is None:
        return RecordsOfFiles(names, file, Column(tf.constant(records.offset)))
    return PartsOfFiles(names, file, paths, records)


def _are_within(records: Records, lengths: np.ndarray, num_files: int) -> bool:
    least = min(int(values.min()) for values in (records.file, records.offset, lengths))
    return least >= 0 and int(records.file.max()) < num_files


class RowReader:
    """The rows of one data set. Used by one thread."""

    def __init__(
        self,
        function: program_pb2.StepProgram,
        given: Sequence[Column],
        files: Sequence[Files],
        num_threads: int,
    ) -> None:
        """
        Args:
            function: The function of a row: of one value of each column, then of the content of each of its files.
            given: Columns of its values.
            files: What reads its files.
            num_threads: How many rows are computed at once.

        Raises:
            ProtocolError: The function takes other values.
        """
        if len(function.batch) != len(given) + len(files):
            raise ProtocolError(
                f"A function of a row takes a value of each column, and each file. Received: {len(function.batch)} inputs for "
                f"{len(given)} columns and {len(files)} files"
            )
        self._given, self._files, self._num_threads = given, files, max(1, num_threads)
        self._function = row_function.RowFunction(function)
        self._specs = [tf.TensorSpec(shape_of(output.tensor), output.tensor.dtype) for output in function.outputs]
        # Batches that the pipeline was told of and whose tensors were not taken.
        self._told: collections.deque[np.ndarray] = collections.deque()
        self._numbers: Any = None
        self._batches: Any = None

    @functools.cached_property
    def _now(self) -> Any:
        # Not called as a `tf.function`: of several readers TensorFlow would say that their function is traced too often.
        return tf.function(self._batch, autograph=False).get_concrete_function(tf.TensorSpec([None], tf.int64))

    def shapes(self, num_rows: int) -> list[tuple[int, ...]]:
        """Returns the shapes of the tensors of a batch."""
        return [(num_rows, *spec.shape.as_list()) for spec in self._specs]

    def expect(self, rows: np.ndarray) -> None:
        """Begins to read a batch if there is room; batches must be taken in the order of these calls.

        Args:
            rows: int64 [batch].
        """
        if not len(rows) or len(self._told) >= _TOLD:
            return
        if self._batches is None:
            self._begin()
        self._numbers.enqueue(tf.constant(rows, tf.int64))
        self._told.append(rows)

    def take(self, rows: np.ndarray) -> list[tf.Tensor]:
        """Returns a tensor [batch, ...] for each input of the step; reads a batch now if it was not expected.

        Args:
            rows: int64 [batch].

        Raises:
            UnreadableRowError: A file cannot be read, or a row not be computed.
        """
        if not len(rows):
            return [tf.zeros([0, *spec.shape], spec.dtype) for spec in self._specs]
        try:
            if self._told and np.array_equal(self._told[0], rows):
                self._told.popleft()
                return list(next(self._batches))
            return list(self._now(tf.constant(rows, tf.int64)))
        except tf.errors.OpError as error:
            raise UnreadableRowError(error) from None

    def close(self) -> None:
        """Ends the pipeline, which waits for row numbers."""
        if self._batches is not None:
            with contextlib.suppress(tf.errors.OpError):
                self._numbers.close(cancel_pending_enqueues=True)
            self._batches = None

    def _begin(self) -> None:
        with tf.device("/cpu:0"):
            self._numbers = tf.queue.FIFOQueue(_TOLD, [tf.int64])
            batches = tf.data.Dataset.counter().map(lambda _: self._next_numbers())
            batches = batches.map(self._batch, num_parallel_calls=_AT_ONCE, deterministic=True).prefetch(_WAITING)
            options = tf.data.Options()
            options.autotune.enabled = False
            # TensorFlow's fusion of the map and the batch in `_batch` fails where the function of a row looks a table up.
            options.experimental_optimization.apply_default_optimizations = False
            # One place each for a batch whose rows are waited for.
            options.threading.private_threadpool_size = self._num_threads + _AT_ONCE
            self._batches = iter(batches.with_options(options))

    def _next_numbers(self) -> tf.Tensor:
        numbers: tf.Tensor = self._numbers.dequeue()
        numbers.set_shape([None])
        return numbers

    def _batch(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the tensors of a batch, in a graph."""
        each = tf.data.Dataset.from_tensor_slices((rows, *(file.beforehand(rows) for file in self._files)))
        made = each.map(self._row, num_parallel_calls=self._num_threads, deterministic=True)
        batch = made.batch(tf.maximum(tf.size(rows, tf.int64), 1)).get_single_element()
        return tuple(
            tf.ensure_shape(values, [None, *spec.shape]) for values, spec in zip(batch, self._specs, strict=True)
        )

    def _row(self, number: tf.Tensor, *beforehand: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        contents = [file.content(number, *read) for file, read in zip(self._files, beforehand, strict=True)]
        values = self._function(*(column.row(number) for column in self._given), *contents)
        return tuple(tf.ensure_shape(value, spec.shape) for value, spec in zip(values, self._specs, strict=True))


def reader_here(files: RowFiles, num_threads: int) -> RowReader:
    """Returns the reader of rows on the machine that named their files.

    Args:
        files: What the rows are made of.
        num_threads: How many rows are computed at once.
    """

    def column(values: np.ndarray | list[bytes]) -> Column:
        if isinstance(values, list):
            return text_column(row_function.packed_texts(values), len(values))
        return Column(tf.constant(values))

    read: list[Files] = [WholeFiles(column(paths)) for paths in files.files]
    if files.records is not None:
        read = [files_of_records(files.files[0], files.records)]
    return RowReader(files.function, list(map(column, files.given)), read, num_threads)
