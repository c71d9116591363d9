"""Cuts the function of a row at the files that it reads.

    from_tensor_slices(paths).map(lambda path: decode(tf.io.read_file(path)))
        ->  the paths, and a graph from a file's content to the row

The graph travels and has no operation that names a file; the workers open the files. It is put together of the
graphs that the script traced, calls that read files inlined. `docs/decisions/0105`.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.cache_op import CacheDataset
from tensorflow.python.data.ops.zip_op import _ZipDataset
from tensorflow.python.framework.func_graph import FuncGraph

from fdt.capture import mapped, record_files
from fdt.capture.rowwise import MIXING, NotRowsError, is_rowwise
from fdt.errors import ProgramRefusedError
from fdt.program import admission, lookup_tables, row_function
from fdt.program.graphs import called, is_call
from fdt.program.operations import DECODERS
from fdt.program.row_function import RowFiles
from fdt.program.step_program import import_function
from fdt.transport import wire
from fdt.v1 import graph_pb2, program_pb2

_READ = "ReadFile"
# Constants that a function may hold, such as the names of classes.
_CONSTANT_BYTES = 16 << 20
# Folders in which a path names another thing for each process.
_OF_A_PROCESS = ("/proc/", "/dev/", "/sys/")


def reads_files(dataset: Any) -> bool:
    """Returns whether a function of a data set reads files, or its rows are records of files."""
    return has_records(dataset) or _has_reading_map(dataset)


def has_records(dataset: Any) -> bool:
    """Returns whether a data set's rows are records of files."""
    return record_files.is_of_records(dataset) or any(map(has_records, dataset._inputs()))


def _has_reading_map(dataset: Any) -> bool:
    if isinstance(dataset, mapped.MAPS) and _reads(dataset._map_func.function.graph):
        return True
    return any(map(_has_reading_map, dataset._inputs()))


def _reads(graph: Any) -> bool:
    graph_def = graph.as_graph_def()
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return any(node.op == _READ for body in bodies for node in body)


def cut(dataset: Any, admitted: Collection[str] = (), is_elsewhere: bool = False) -> RowFiles:
    """Cuts the function that makes a data set's rows of its sources.

    Args:
        dataset: A data set whose functions read files.
        admitted: Operations that the pool admits besides the usual ones.
        is_elsewhere: See `fdt.capture.rows.RowNumbers.of_files`.

    Raises:
        NotRowsError: A row depends on more than itself, has no fixed shape, is kept by the data set, or its function cannot
            travel.
    """
    # On this machine, memory is faster than to read again.
    if not is_elsewhere:
        _check_not_kept(dataset, is_after=False)
    sources = mapped.sources(dataset)
    specs = [_of_row(spec) for spec in tf.nest.flatten(dataset.element_spec)]
    graph = _Graph([tf.TensorSpec(tensor.shape[1:], tensor.dtype) for tensor in sources])
    outputs = graph.outputs(dataset)
    graph_def = graph.graph.as_graph_def(add_shapes=False)
    effects = [node.name for node in graph_def.node if node.op == "Assert"]
    of_rows = row_function.needed(graph_def, outputs, effects)
    kept = {node.name for node in of_rows.node}
    used = [place for place, tensor in enumerate(graph.given) if tensor.op.name in kept]
    inputs = [*(graph.given[place] for place in used), *graph.contents]
    paths = [] if graph.records is not None else [_absolute(each) for each in _paths(graph, graph_def, sources)]
    _check_kept(kept, graph.contents)
    function = row_function.described(of_rows, inputs, outputs, specs, graph.tables(kept))
    _check_admitted(function, admitted)
    given = [_column(sources[place]) for place in used]
    if graph.records is not None:
        files = [_absolute(record_files.paths(graph.records))]
        return RowFiles(function, given, files, record_files.index(graph.records))
    return RowFiles(function, given, paths, to_the_bit=graph.is_to_the_bit)


def _check_not_kept(dataset: Any, is_after: bool) -> None:
    """Refuses a cache of what was read from files: plain python reads them once."""
    is_after = is_after or type(dataset) is CacheDataset
    is_read = isinstance(dataset, mapped.MAPS) and _reads(dataset._map_func.function.graph)
    if is_after and (is_read or record_files.is_of_records(dataset)):
        raise NotRowsError("the data set keeps what it has read (cache)")
    for inner in dataset._inputs():
        _check_not_kept(inner, is_after)


def _of_row(spec: Any) -> tf.TensorSpec:
    is_fixed = isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[1:].is_fully_defined()
    if not is_fixed or spec.dtype in (tf.string, tf.variant, tf.resource):
        raise NotRowsError("its rows are not tensors of numbers of one shape")
    return tf.TensorSpec(spec.shape[1:], spec.dtype)


def _check_kept(kept: Collection[str], contents: Sequence[tf.Tensor]) -> None:
    if not contents or any(tensor.op.name not in kept for tensor in contents):
        raise NotRowsError("a file is read whose content no row uses")


def _check_admitted(function: program_pb2.StepProgram, admitted: Collection[str]) -> None:
    graph = wire.decode(graph_pb2.MetaGraphDef, function.step.meta_graph).graph_def
    try:
        admission.admit_graph(graph, {*admitted, *DECODERS})
    except ProgramRefusedError as error:
        raise NotRowsError(f"its function cannot travel: {error}") from None


class _Graph:
    """The function of a row in one graph.

    Attributes:
        graph: FuncGraph.
        given: Placeholders of the sources' values.
        contents: Placeholders of the files' contents.
        paths: The tensors that name the files.
        records: The data set whose records the rows are; None if they are whole files.
        is_to_the_bit: See `RowFiles`.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        self.graph: Any = FuncGraph("row")
        self.contents: list[tf.Tensor] = []
        self.paths: list[tf.Tensor] = []
        with self.graph.as_default():
            self.given = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        self.records: Any = None
        self.is_to_the_bit = True
        # The handles of lookup tables, and their placeholders.
        self._tables: list[tuple[tf.Tensor, tf.Tensor]] = []
        self._libraries: set[int] = set()

    def outputs(self, dataset: Any) -> list[tf.Tensor]:
        """Returns the tensors of a row of a data set's elements."""
        with self.graph.as_default():
            row = self._row(dataset, iter(self.given))[0]
        if self.records is not None and self.paths:
            raise NotRowsError("a file is read beside each record")
        return row

    def tables(self, kept: Collection[str]) -> dict[str, program_pb2.Table]:
        """Returns the lookup tables by their placeholders.

        Args:
            kept: The names of the operations that compute a row.
        """
        found = {}
        for handle, inside in self._tables:
            table = lookup_tables.describe(handle, inside) if inside.op.name in kept else None
            if table is not None:
                found[inside.op.name] = table
        return found

    def _row(self, dataset: Any, given: Iterator[tf.Tensor]) -> tuple[list[tf.Tensor], int | None]:
        """Returns a row's tensors, and the batch size; None before batching."""
        kind = type(dataset)
        if kind is _ZipDataset:
            return [tensor for part in dataset._inputs() for tensor in self._row(part, given)[0]], None
        if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
            raise NotRowsError("its rows are not tensors of numbers of one shape")
        if kind in mapped.SOURCES:
            return [next(given) for _ in tf.nest.flatten(dataset.element_spec)], None
        if mapped.is_constant(dataset):
            return [_constant(tensor) for tensor in dataset._input_dataset._tensors], None
        if record_files.is_of_records(dataset):
            # The workers know the row's number.
            next(given)
            return self._record(dataset), None
        row, size = self._row(dataset._input_dataset, given)
        if kind in mapped.BATCHES:
            return row, int(tf.get_static_value(dataset._batch_size))
        if kind not in mapped.MAPS:
            return row, size
        function = dataset._map_func.function
        if not mapped.is_pure(function):
            raise NotRowsError(mapped.IMPURE)
        return (self._called(function, row) if size is None else self._called_by_row(function, row, size)), size

    def _record(self, dataset: Any) -> list[tf.Tensor]:
        """Returns the tensors of a row that is a record."""
        self.records = dataset
        self.contents.append(tf.compat.v1.placeholder(tf.string, []))
        row = self.contents[-1:]
        for function in record_files.reading(dataset).functions:
            if not mapped.is_pure_graph(function.graph, function.captured):
                raise NotRowsError("a function of its records draws random numbers, calls Python or has a state")
            row = self._inlined(function.graph, [*row, *map(self._captured, function.captured)])
        return row

    def _called_by_row(self, function: Any, row: Sequence[tf.Tensor], size: int) -> list[tf.Tensor]:
        """Calls a function of batches for a batch of one row."""
        given = function.inputs[: len(row)]
        if not is_rowwise(function, size) or any(tensor.shape[0] not in (None, 1) for tensor in given):
            raise NotRowsError(MIXING)
        return [tensor[0] for tensor in self._called(function, [tensor[None] for tensor in row])]

    def _called(self, function: Any, given: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._inlined(function.graph, [*given, *map(self._captured, function.captured_inputs)])

    def _captured(self, value: Any) -> tf.Tensor:
        """Returns a captured tensor or array as a constant, and a table as a placeholder."""
        if not tf.is_tensor(value):
            return _held(value)
        if value.dtype != tf.resource:
            return _constant(value)
        known = next((inside for handle, inside in self._tables if handle is value), None)
        if known is None:
            known = tf.compat.v1.placeholder(tf.resource, [])
            self._tables.append((value, known))
        return known

    def _inlined(self, graph: Any, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Copies a FuncGraph's operations; those that read files become inputs."""
        self._import_library(graph)
        made = {tensor.ref(): given for tensor, given in zip(graph.inputs, arguments, strict=True)}
        copies: dict[str, Any] = {}
        for op in graph.get_operations():
            if op.type == "Placeholder" and op.outputs[0].ref() in made:
                continue
            inputs = [made[tensor.ref()] for tensor in op.inputs]
            with tf.control_dependencies(
                [copies[before.name] for before in op.control_inputs if before.name in copies]
            ):
                copies[op.name], outputs = self._copied(op, inputs)
            for tensor, output in zip(op.outputs, outputs, strict=True):
                if tensor.shape.rank is not None:
                    output.set_shape(tensor.shape)
                made[tensor.ref()] = output
        return [made[tensor.ref()] for tensor in graph.outputs]

    def _copied(self, op: Any, inputs: list[tf.Tensor]) -> tuple[Any, Sequence[tf.Tensor]]:
        """Returns the operation in an operation's place, which others may wait for, and what takes the place of its outputs."""
        if op.type == _READ:
            self.paths.append(inputs[0])
            self.contents.append(tf.compat.v1.placeholder(tf.string, []))
            return self.contents[-1].op, self.contents[-1:]
        if any(map(_reads, called(op))):
            if not is_call(op):
                raise NotRowsError("a file is read within a branch or a loop")
            outputs = self._inlined(called(op)[0], inputs)
            self.is_to_the_bit = False
            return outputs[0].op, outputs
        attributes = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
        types = [tensor.dtype for tensor in op.outputs]
        copy = self.graph._create_op_internal(op.type, inputs, types, attrs=attributes)
        return copy, copy.outputs

    def _import_library(self, graph: Any) -> None:
        if id(graph) not in self._libraries:
            self._libraries.add(id(graph))
            library = tf.compat.v1.GraphDef(versions=graph.as_graph_def().versions)
            library.library.CopyFrom(graph.as_graph_def().library)
            tf.graph_util.import_graph_def(library, name="")


def _constant(tensor: Any) -> tf.Tensor:
    return _held(tensor.numpy())


def _held(value: Any) -> tf.Tensor:
    if isinstance(value, bytes):
        return tf.constant(value)
    if value.nbytes > _CONSTANT_BYTES:
        raise NotRowsError(f"a function of its rows holds a constant of {value.nbytes:,} bytes")
    return tf.constant(value)


def _paths(graph: _Graph, graph_def: Any, sources: Sequence[tf.Tensor]) -> Iterator[list[bytes]]:
    """Yields for each file of a row the paths of all rows."""
    for path in graph.paths:
        place = next((place for place, tensor in enumerate(graph.given) if tensor is path), None)
        yield list(sources[place].numpy()) if place is not None else _computed(graph, graph_def, path, sources)


def _computed(graph: _Graph, graph_def: Any, path: tf.Tensor, sources: Sequence[tf.Tensor]) -> list[bytes]:
    part = row_function.needed(graph_def, [path])
    names = {node.name for node in part.node}
    if any(content.op.name in names for content in graph.contents):
        raise NotRowsError("a file names another one that is read")
    used = [place for place, tensor in enumerate(graph.given) if tensor.op.name in names]
    inputs = {
        graph.given[place].op.name: tf.TensorSpec(graph.given[place].shape, sources[place].dtype) for place in used
    }
    function = import_function(tf.compat.v1.MetaGraphDef(graph_def=part), inputs, {}, [path.name], [])
    rows = tf.data.Dataset.from_tensor_slices(tuple(sources[place] for place in used))
    made = rows.map(lambda *values: function(*values)[0], num_parallel_calls=tf.data.AUTOTUNE).batch(1024)
    return [each for batch in made.as_numpy_iterator() for each in batch]


def _absolute(paths: list[bytes]) -> list[bytes]:
    """Returns the paths as any process of this machine understands them."""
    found = [os.path.abspath(path) for path in paths]
    for path, absolute in zip(paths, found, strict=True):
        if b"://" in path or absolute.startswith(tuple(map(os.fsencode, _OF_A_PROCESS))):
            raise NotRowsError(f"{os.fsdecode(path)} is no file of this machine's folders")
    return found


def _column(tensor: tf.Tensor) -> np.ndarray | list[bytes]:
    values = tensor.numpy()
    if tensor.dtype != tf.string:
        return np.ascontiguousarray(values)
    if values.ndim != 1:
        raise NotRowsError("a row of its sources has several texts")
    return list(values)
