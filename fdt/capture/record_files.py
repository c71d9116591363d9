"""Data sets whose elements are records of files: which files, and in which order their records come.

    TFRecordDataset(files)                                           one file after the other
    TFRecordDataset(files, num_parallel_reads=8)                     some files in turn
    list_files("*.tfrecord").interleave(TFRecordDataset)             the same, in an order of the script's
    files.interleave(lambda file: TFRecordDataset(file).map(parse))  the same, with a function of each record

Each is a data set of names, and a rule by which the records of the files follow each other. The rule is TensorFlow's own: it
is applied to the numbers of the records instead of the records. Lines of a `TextLineDataset`, and what a
`FixedLengthRecordDataset` yields, are records too; so are lines of a `CsvDataset`, with a function that takes them apart.
`docs/decisions/0105`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops.readers import CsvDatasetV2
from tensorflow.python.data.ops.flat_map_op import _FlatMapDataset
from tensorflow.python.data.ops.interleave_op import _InterleaveDataset, _ParallelInterleaveDataset
from tensorflow.python.data.ops.readers import (
    FixedLengthRecordDatasetV2,
    ParallelInterleaveDataset,
    TextLineDatasetV2,
    TFRecordDatasetV2,
)

from fdt.capture.rowwise import NotRowsError
from fdt.program import compressed_file, record_index
from fdt.program.graphs import called

_BY_FILE = (_FlatMapDataset, _InterleaveDataset, _ParallelInterleaveDataset, ParallelInterleaveDataset)
_READERS = (TFRecordDatasetV2, TextLineDatasetV2, FixedLengthRecordDatasetV2, CsvDatasetV2)
# The types of data sets of records; an iterator over one starts exactly one over the data set of the names.
KINDS = (*_READERS, *_BY_FILE)
_TABLE = "CSVDatasetV2"
_RECORDS = ("TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset", "FixedLengthRecordDatasetV2", _TABLE)
# Which input of these operations tells how the files are compressed; of a table that comes before what its lines are made of.
_COMPRESSION = {"FixedLengthRecordDatasetV2": 5}
# Operations between the records of a file and what the function of a file returns that keep all elements and their order.
_PASSING = ("Identity", "OptionsDataset", "PrefetchDataset")
_MAPS = ("MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2")
# Rows whose places are kept, 20 bytes each.
_MAX_ROWS = 1 << 26
# From a data set of lines of tables to what reads them file by file.
_tables = WeakKeyDictionary[Any, Any]()


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a record, or of what the function before it made of that.

    Attributes:
        graph: FuncGraph.
        captured: The values of its last inputs: arrays, and handles of resources.
    """

    graph: Any
    captured: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Reading:
    """What becomes of a file.

    Attributes:
        layout: How it holds records.
        skipped: How many of its first records are left out.
        functions: The functions that are applied to each record, in order.
    """

    layout: record_index.Layout
    skipped: int
    functions: Sequence[Function]


def is_of_records(dataset: Any) -> bool:
    """Whether the elements of a data set are made of files' records, one after the other or in turn."""
    if type(dataset) in _READERS:
        return True
    if type(dataset) not in _BY_FILE:
        return False
    graph_def = dataset._map_func.function.graph.as_graph_def()
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return any(node.op in _RECORDS for body in bodies for node in body)


def names(dataset: Any) -> Any:
    """Returns the data set of the names of the files."""
    return _by_file(dataset)._input_dataset


def paths(dataset: Any) -> list[bytes]:
    """Returns the paths of all files whose records a data set may yield, in the order of the source of their names.

    Raises:
        NotRowsError: They are not known.
    """
    source = names(dataset)
    while hasattr(source, "_input_dataset"):
        if hasattr(source, "_map_func"):
            raise NotRowsError("the names of its files are computed")
        source = source._input_dataset
    tensors: list[Any] = list(getattr(source, "_tensors", ()))
    if len(tensors) != 1 or tensors[0].dtype != tf.string or tensors[0].shape.rank != 1:
        raise NotRowsError("the names of its files are no list")
    return list(tensors[0].numpy())


def index(dataset: Any) -> record_index.Records:
    """Returns the records of all files, by the order of `paths`.

    Raises:
        NotRowsError: The files are not known, or cannot be read.
    """
    found = reading(dataset)
    try:
        records = record_index.index(paths(dataset), found.layout, found.skipped)
    except (OSError, record_index.NoIndexError) as error:
        raise NotRowsError(str(error)) from None
    if len(records.offset) > _MAX_ROWS:
        raise NotRowsError(f"its files have more than {_MAX_ROWS:,} rows")
    return records


def in_order(dataset: Any, files: Any) -> Any:
    """Returns the data set of the records' numbers, by `index`, in the order in which a data set yields the records.

    Args:
        dataset: The data set of records.
        files: The data set of the places of its files in `paths`, in the order of their names.

    Raises:
        NotRowsError: See `index`.
    """
    found = index(dataset)
    num_records = np.bincount(found.file, minlength=len(paths(dataset)))
    begins = tf.constant(np.concatenate([[0], np.cumsum(num_records)]), tf.int64)
    by_file = _by_file(dataset)

    def numbers(file: tf.Tensor) -> Any:
        return tf.data.Dataset.range(begins[file], begins[file + 1])

    if type(by_file) is _FlatMapDataset:
        return files.flat_map(numbers)
    turns = {name: _value(by_file, f"_{name}") for name in ("cycle_length", "block_length")}
    if type(by_file) is _InterleaveDataset:
        return files.interleave(numbers, **turns)
    # In the order of a deterministic data set, where the script asks for whatever comes first.
    if type(by_file) is _ParallelInterleaveDataset:
        at_once = _value(by_file, "_num_parallel_calls")
        return files.interleave(numbers, **turns, num_parallel_calls=at_once, deterministic=True)
    ahead = {name: _value(by_file, f"_{name}") for name in ("buffer_output_elements", "prefetch_input_elements")}
    return ParallelInterleaveDataset(files, numbers, **turns, sloppy=False, **ahead)


def reading(dataset: Any) -> Reading:
    """Returns what a data set does with each of its files.

    Raises:
        NotRowsError: It does more than to apply functions to records.
    """
    of_file = _by_file(dataset)._map_func.function
    # What is captured by a function of a file is the same for all files.
    known = {inner.ref(): outer for outer, inner in zip(of_file.captured_inputs, of_file.graph.inputs[1:], strict=True)}
    op, skipped, functions = of_file.graph.outputs[0].op, 0, list[Function]()
    while op.type not in ("TensorSliceDataset", *_RECORDS):
        if op.type in _MAPS:
            values = op.inputs[1 : 1 + len(op.get_attr("Targuments"))]
            captured = [_known(value, known) for value in values]
            if any(value is None for value in captured):
                raise NotRowsError("a function of its records depends on the file, or on a state")
            functions.insert(0, Function(called(op)[0], captured))
        elif op.type == "FlatMapDataset":
            inner = called(op)[0]
            given = {
                tensor.ref(): _known(value, known)
                for tensor, value in zip(inner.inputs[1:], op.inputs[1:], strict=True)
            }
            layout = _layout(inner.outputs[0].op, given)
        elif op.type == "SkipDataset":
            skipped += _number(op.inputs[1], known)
        elif op.type not in _PASSING:
            raise NotRowsError(f"it does more with a file than to read its records ({op.type})")
        op = op.inputs[0].op
    if op.type == _TABLE:
        skipped += _number(op.inputs[3], known)
        functions.insert(0, Function(_fields(op, known), []))
    if op.type in _RECORDS:
        layout = _layout(op, known)
    else:
        _check_named(op, of_file.graph)
    return Reading(layout, skipped, functions)


def _layout(op: Any, known: Mapping[Any, Any]) -> record_index.Layout:
    """Returns how the file that is a function's argument holds records.

    Args:
        op: What the function returns.
        known: The values of what it has captured.

    Raises:
        NotRowsError: It returns more than all records of the file, as they are.
    """
    while op.type == "Identity":
        op = op.inputs[0].op
    if op.type not in _RECORDS:
        raise NotRowsError(f"it does more with a file than to read its records ({op.type})")
    _check_named(op, op.graph)
    layout = _of_content(op, known)
    kind = _known(op.inputs[_COMPRESSION.get(op.type, 1)], known)
    if kind == b"":
        return layout
    compression = "" if kind is None else bytes(np.asarray(kind).item()).decode()
    if compression not in compressed_file.KINDS:
        raise NotRowsError("how its records are compressed is not known")
    return record_index.Compressed(layout, compression)


def _of_content(
    op: Any, known: Mapping[Any, Any]
) -> record_index.TFRecords | record_index.Lines | record_index.OneLength:
    if op.type == "FixedLengthRecordDatasetV2":
        header, record, footer = (_number(tensor, known) for tensor in op.inputs[1:4])
        if record > 0:
            return record_index.OneLength(header, record, footer)
        raise NotRowsError("its records have no bytes")
    if op.type == _TABLE:
        return record_index.Table(bool(_known(op.inputs[5], known)))
    return record_index.Lines() if op.type == "TextLineDataset" else record_index.TFRecords()


def _fields(op: Any, known: Mapping[Any, Any]) -> Any:
    """Returns the FuncGraph from a line of a table to its fields, which a CSVDatasetV2 yields."""
    delimiter, quotes, missing, chosen, *defaults, left_out = (_known(tensor, known) for tensor in op.inputs[4:])
    if any(value is None for value in (delimiter, quotes, missing, chosen, *defaults)) or np.size(left_out):
        raise NotRowsError("how a line of its table is taken apart is computed, or columns are left out")

    def fields(line: tf.Tensor) -> list[tf.Tensor]:
        made: list[tf.Tensor] = tf.io.decode_csv(
            line,
            list(map(tf.constant, defaults)),
            np.asarray(delimiter).item(),
            bool(quotes),
            np.asarray(missing).item(),
            np.asarray(chosen).tolist() or None,
        )
        return made

    return tf.function(fields, autograph=False).get_concrete_function(tf.TensorSpec([], tf.string)).graph


def _table_by_file(dataset: Any) -> Any:
    """Returns a data set that reads the same files of tables as a CsvDataset, one after the other."""
    if dataset not in _tables:

        def of_file(name: tf.Tensor) -> CsvDatasetV2:
            return CsvDatasetV2(
                name,
                list(dataset._record_defaults),
                dataset._compression_type,
                dataset._buffer_size,
                dataset._header,
                dataset._field_delim,
                dataset._use_quote_delim,
                dataset._na_value,
                dataset._select_cols,
                dataset._exclude_cols,
            )

        names = tf.data.Dataset.from_tensor_slices(tf.reshape(dataset._filenames, [-1]))
        _tables[dataset] = names.flat_map(of_file)
    return _tables[dataset]


def _known(tensor: tf.Tensor, known: Mapping[Any, Any]) -> Any:
    """Returns a tensor's value, or the handle of a resource; None if it is not known."""
    value = known.get(tensor.ref())
    if value is None:
        return tf.get_static_value(tensor)
    return value.numpy() if tf.is_tensor(value) and value.dtype != tf.resource else value


def _number(tensor: tf.Tensor, known: Mapping[Any, Any]) -> int:
    value = _known(tensor, known)
    if value is None or int(value) < 0:
        raise NotRowsError("which of a file's records it takes is computed")
    return int(value)


def _check_named(op: Any, graph: Any) -> None:
    """Refuses files other than the one that is a function's argument."""
    tensor = op.inputs[0]
    while tensor.op.type in ("Identity", "Reshape") or (tensor.op.type == "Pack" and len(tensor.op.inputs) == 1):
        tensor = tensor.op.inputs[0]
    if tensor is not graph.inputs[0]:
        raise NotRowsError("a function of its files chooses other files")


def _by_file(dataset: Any) -> Any:
    """Returns the data set that goes from names to records."""
    if type(dataset) is CsvDatasetV2:
        return _table_by_file(dataset)
    return dataset._impl if type(dataset) in _READERS else dataset


def _value(dataset: Any, name: str) -> int:
    value = tf.get_static_value(getattr(dataset, name))
    if value is None:
        raise NotRowsError("how many of its files are read in turn is computed")
    return int(value)
