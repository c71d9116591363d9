"""Computes a data set's functions of single rows once, for all rows.

    from_tensor_slices(images).map(scale)             ->  the arrays of the scaled images
    from_tensor_slices(images).batch(32).map(scale)   ->  the same
    from_tensor_slices(images).filter(is_large)       ->  which of the rows pass

What is computed, and that it depends on the row alone, is read from the functions' graphs. `docs/decisions/0031`.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.batch_op import _BatchDataset, _ParallelBatchDataset
from tensorflow.python.data.ops.cache_op import CacheDataset
from tensorflow.python.data.ops.dataset_ops import _OptionsDataset, _VariantDataset
from tensorflow.python.data.ops.from_tensor_slices_op import _TensorSliceDataset
from tensorflow.python.data.ops.from_tensors_op import _TensorDataset
from tensorflow.python.data.ops.map_op import _MapDataset, _ParallelMapDataset
from tensorflow.python.data.ops.prefetch_op import _PrefetchDataset
from tensorflow.python.data.ops.range_op import _RangeDataset
from tensorflow.python.data.ops.repeat_op import _RepeatDataset
from tensorflow.python.data.ops.zip_op import _ZipDataset
from tensorflow.python.framework import op_def_registry

from fdt.capture import record_files
from fdt.capture.rowwise import MIXING, NotRowsError, is_rowwise
from fdt.client.report import say
from fdt.program import lookup_tables

MAPS = (_MapDataset, _ParallelMapDataset)
BATCHES = (_BatchDataset, _ParallelBatchDataset)
# Data sets that yield rows of arrays or numbers.
SOURCES = (_TensorSliceDataset, _RangeDataset)
# Data sets that keep their input's rows, one by one and in order.
_PASSING = (*MAPS, _OptionsDataset, _PrefetchDataset, CacheDataset)
IMPURE = "a function of its rows draws random numbers, calls Python or has a state"
# Stateful only by their bodies and tables, which are checked separately; an assertion has no effect but its failure.
_HARMLESS = {"StatefulPartitionedCall", "If", "While", "Case", "Assert", "LookupTableFindV2"}
# Limit of memory for computed rows, in addition to the script's own rows, which are in memory already.
LIMIT_BYTES = 1 << 30
# If computing takes longer than this, a message says so.
_SILENCE_S = 5.0
# Rows that are computed at a time.
_TOGETHER = 256


def sources(dataset: Any) -> list[tf.Tensor]:
    """Returns the tensors [num_rows, ...] whose rows, side by side, are the elements at a data set's source.

    Raises:
        NotRowsError: The data set has other sources too, or the tensors differ in length.
    """
    tensors = list(_sources(dataset, is_part=False))
    if not all(tf.is_tensor(t) and hasattr(t, "numpy") and t.shape.rank for t in tensors):
        raise NotRowsError
    if len({int(tensor.shape[0]) for tensor in tensors}) != 1 or not len(tensors[0]):
        raise NotRowsError
    return tensors


def _sources(dataset: Any, is_part: bool) -> Iterator[tf.Tensor]:
    kind = type(dataset)
    if kind in SOURCES:
        yield from _slices(dataset)
    elif record_files.is_of_records(dataset) and not is_part:
        # What a row of records is made of: its number, by which its record is known.
        yield tf.range(len(record_files.index(dataset).offset), dtype=tf.int64)
    elif kind is _ZipDataset:
        for part in dataset._inputs():
            yield from _sources(part, is_part=True)
    elif is_part and is_constant(dataset):
        return
    elif is_part and (kind not in _PASSING or (kind is CacheDataset and tf.get_static_value(dataset._filename) != b"")):
        # A part of a zip must not change which rows are paired; and a cache in a file may hold other rows.
        raise NotRowsError
    elif hasattr(dataset, "_input_dataset"):
        yield from _sources(dataset._input_dataset, is_part)
    else:
        raise NotRowsError


def _slices(dataset: Any) -> list[tf.Tensor]:
    if type(dataset) is not _RangeDataset:
        return list(dataset._tensors)
    # A range may be endless.
    if not 0 <= int(dataset.cardinality()) * dataset.element_spec.dtype.size <= LIMIT_BYTES:
        raise NotRowsError
    numbers = tf.range(dataset._start, dataset._stop, dataset._step)
    return [tf.cast(numbers, dataset.element_spec.dtype)]


def is_constant(dataset: Any) -> bool:
    """Whether a data set has the same element for every row."""
    is_endless = type(dataset) is _RepeatDataset and tf.get_static_value(dataset._count) == -1
    return is_endless and type(dataset._input_dataset) is _TensorDataset


def has_functions(dataset: Any) -> bool:
    """Whether a data set maps functions over its rows."""
    return isinstance(dataset, MAPS) or any(map(has_functions, dataset._inputs()))


def computed(dataset: Any) -> list[np.ndarray]:
    """Applies a data set's functions to all its rows, in the order of the sources; returns arrays [num_rows, ...].

    Raises:
        NotRowsError: A row's result depends on more than the row, differs in shape from row to row or cannot be
            computed; or all results would be too large.
    """
    return _computed(_rows(dataset)[0], len(sources(dataset)[0]))


def passing(dataset: Any) -> np.ndarray:
    """Returns which rows a filter lets pass, in the order of the sources: bool [num_rows].

    Raises:
        NotRowsError: The filter depends on more than the row, or cannot be computed for one.
    """
    inner, size = _rows(dataset._input_dataset)
    if size is not None:
        raise NotRowsError
    passes = _called(inner, dataset._predicate.function, [tf.TensorSpec([], tf.bool)])
    return _computed(passes, len(sources(dataset)[0]))[0]


def _computed(rows: Any, num_rows: int) -> list[np.ndarray]:
    if any(spec.dtype in (tf.string, tf.variant, tf.resource) for spec in rows.element_spec):
        raise NotRowsError
    arrays: list[np.ndarray] = []
    began_s, said = time.monotonic(), False
    try:
        # Not iterated to the end, where TensorFlow would log that the data have ended.
        batches = iter(rows.batch(_TOGETHER))
        for first in range(0, num_rows, _TOGETHER):
            found = next(batches)
            if num_rows * sum(values.shape[1:].num_elements() * values.dtype.size for values in found) > LIMIT_BYTES:
                raise NotRowsError
            arrays = arrays or [
                np.empty([num_rows, *values.shape[1:]], values.dtype.as_numpy_dtype) for values in found
            ]
            for array, values in zip(arrays, found, strict=True):
                if values.shape[1:] != array.shape[1:]:
                    raise NotRowsError
                array[first : first + len(values)] = values
            if not said and time.monotonic() - began_s > _SILENCE_S:
                say(f"what the data set makes of its rows is computed once, beforehand: {first} of {num_rows} so far")
                said = True
    except tf.errors.OpError:
        # The training raises this error in the script when it comes to that row.
        raise NotRowsError from None
    return arrays


class _Rows(_VariantDataset):  # type: ignore[misc]
    """The results of functions of rows; calls the functions that the script has traced."""

    def __init__(self, inner: Any, variant: tf.Tensor, spec: Any):
        self._inner = inner
        super().__init__(variant, spec)

    def _inputs(self) -> list[Any]:
        return [self._inner]


def _rows(dataset: Any) -> tuple[Any, int | None]:
    """Returns all rows in the order of the sources, each a flat tuple of tensors, and the batch size; None before batching."""
    kind = type(dataset)
    if record_files.is_of_records(dataset):
        raise NotRowsError
    if kind is _ZipDataset:
        parts = [_rows(part)[0] for part in dataset._inputs()]
        return tf.data.Dataset.zip(tuple(parts)).map(lambda *each: tuple(tf.nest.flatten(each))), None
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec)):
        # Ragged and sparse rows, and None in their place, are held in other ways.
        raise NotRowsError
    if kind in SOURCES:
        return tf.data.Dataset.from_tensor_slices(tuple(_slices(dataset))), None
    if is_constant(dataset):
        return tf.data.Dataset.from_tensors(tuple(dataset._input_dataset._tensors)).repeat(), None
    inner, size = _rows(dataset._input_dataset)
    if kind in BATCHES:
        return inner, int(tf.get_static_value(dataset._batch_size))
    if kind not in MAPS:
        return inner, size
    function, specs = dataset._map_func.function, tf.nest.flatten(dataset.element_spec)
    if size is None:
        return _called(inner, function, specs), None
    if not is_rowwise(function, size):
        raise NotRowsError(MIXING)
    num_rows = len(sources(dataset)[0])
    # The function may depend on the batch size, so the last batch is filled up with rows from the beginning.
    whole = inner.repeat().take(-(-num_rows // size) * size).batch(size, drop_remainder=True)
    return _called(whole, function, specs).unbatch().take(num_rows), size


def _called(inner: Any, function: Any, specs: Sequence[tf.TensorSpec]) -> _Rows:
    """Maps a pure function over a data set."""
    if not is_pure(function):
        raise NotRowsError(IMPURE)
    variant = tf.raw_ops.ParallelMapDatasetV2(
        input_dataset=inner._variant_tensor,
        other_arguments=function.captured_inputs,
        f=function,
        num_parallel_calls=tf.data.AUTOTUNE,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        deterministic="true",
        preserve_cardinality=True,
    )
    return _Rows(inner, variant, tuple(specs))


def is_pure(function: Any) -> bool:
    """Whether a traced function's result depends on its arguments alone, and it has no side effects.

    It may look values up in tables that cannot change.

    Args:
        function: ConcreteFunction.
    """
    return is_pure_graph(function.graph, function.captured_inputs)


def is_pure_graph(graph: Any, captured: Sequence[Any]) -> bool:
    """Whether the outputs of a FuncGraph depend on its inputs alone; see `is_pure`.

    Args:
        graph: FuncGraph.
        captured: The values of its last inputs, tensors or arrays.
    """
    inside = graph.inputs[len(graph.inputs) - len(captured) :]
    for value, placeholder in zip(captured, inside, strict=True):
        if placeholder.dtype == tf.variant:
            return False
        if placeholder.dtype == tf.resource and not lookup_tables.is_fixed(value, placeholder):
            return False
    graph_def = graph.as_graph_def()
    # The graph's library also has the bodies of the functions that it calls.
    bodies: list[Sequence[Any]] = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    return all(_is_stateless(node.op) for body in bodies for node in body)


def _is_stateless(name: str) -> bool:
    definition = op_def_registry.get(name)
    # A function called by its name has no definition here; its body is checked.
    return definition is None or not definition.is_stateful or name in _HARMLESS
