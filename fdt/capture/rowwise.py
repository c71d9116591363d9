"""Tells whether a function of a batch computes each row of its result from the same row of its arguments.

It reads the function's graph, by a list of operations which are known to do so, and to compute a row the same to the last bit
anywhere in a batch. Exponentials, sums and products of matrices are not on the list, since the last rows of a batch may round
differently.
"""

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_ENTRY_BY_ENTRY = {
    *("Identity", "Snapshot", "StopGradient", "PreventGradient", "EnsureShape", "Cast", "ZerosLike", "OnesLike"),
    *("Abs", "Neg", "Sign", "Square", "Floor", "Ceil", "Round", "Rint", "Relu", "Relu6", "ClipByValue"),
    *("IsNan", "IsInf", "IsFinite", "LogicalNot", "StringToNumber", "Bucketize"),
    *("StringLower", "StringUpper", "StringStrip", "StringLength", "StaticRegexReplace", "StaticRegexFullMatch"),
    *("StringToHashBucketFast", "StringToHashBucketStrong"),
}
_BROADCASTING = {
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "SquaredDifference"),
    *("FloorDiv", "FloorMod", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "SelectV2"),
    *("LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
}
# Operations on images [batch, height, width, channels].
_RESIZING = {"ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"}
# Operations along axes, with the index of the input that names the axes.
_ALONG = {
    **dict.fromkeys(("Max", "Min", "All", "Any", "ArgMax", "ArgMin", "ReverseV2", "ExpandDims"), 1),
    "Split": 0,
    "SplitV": 2,
    "ConcatV2": -1,
}


_BOUNDING: dict[str, Callable[[Sequence[float]], float]] = {"Minimum": min, "Maximum": max}


class _Kind(enum.Enum):
    SAME = "the same for every batch"
    ROWS = "of row i the batch's row i"
    SIZE = "made of the number of rows"
    WORDS = "words of the rows' texts, one row's behind the other's, or of each word a value"
    PLACES = "of each word its row, and which word of the row it is; or how many of these there are"
    OTHER = "anything else"


class NotRowsError(Exception):
    """A data set is more than rows, each made by itself."""


MIXING = "a function of its batches may mix rows"


def is_rowwise(function: Any, size: int) -> bool:
    """Whether a traced function of batches computes each row of its results from the same row of its arguments.

    Args:
        function: ConcreteFunction, pure (see `fdt.capture.mapped`), of tensors [batch, ...].
        size: Rows of a full batch.
    """
    captured = len(function.captured_inputs)
    given = function.inputs[: len(function.inputs) - captured]
    if not all(_is_batch(tensor, size) for tensor in [*given, *function.outputs]):
        return False
    kinds = [_Kind.ROWS] * len(given) + [_Kind.SAME] * captured
    return all(kind is _Kind.ROWS for kind in _returned(function.graph, kinds))


def _is_batch(tensor: tf.Tensor, size: int) -> bool:
    return bool(tensor.shape.rank) and tensor.shape[0] in (None, size) and tensor.shape[1:].is_fully_defined()


def _returned(graph: Any, given: Sequence[_Kind]) -> list[_Kind]:
    """Returns the kinds of the outputs of a function's graph, given those of its inputs."""
    kinds = {tensor.ref(): kind for tensor, kind in zip(graph.inputs, given, strict=True)}
    for operation in graph.get_operations():
        if operation.type == "Placeholder" or not operation.outputs:
            continue
        found = _kinds(operation, [kinds[tensor.ref()] for tensor in operation.inputs])
        kinds.update(zip((tensor.ref() for tensor in operation.outputs), found, strict=True))
    return [kinds[tensor.ref()] for tensor in graph.outputs]


def _kinds(operation: Any, given: list[_Kind]) -> list[_Kind]:
    if operation.type in _CALLS:
        return _returned(operation.graph._get_function(operation.get_attr("f").name).graph, given)
    if operation.type == "StringSplitV2" and given == [_Kind.ROWS, _Kind.SAME]:
        return [_Kind.PLACES, _Kind.WORDS, _Kind.PLACES]
    return [_kind(operation, given)] * len(operation.outputs)


def _kind(operation: Any, given: list[_Kind]) -> _Kind:
    if operation.type in _BOUNDING and _is_one_number(operation.outputs[0]):
        return _Kind.SAME
    if _Kind.OTHER in given:
        return _Kind.OTHER
    if _Kind.WORDS in given or _Kind.PLACES in given:
        return _kind_of_words(operation, given)
    if _Kind.ROWS not in given:
        return _Kind.SIZE if _Kind.SIZE in given else _Kind.SAME
    if operation.type == "Shape":
        return _Kind.SIZE
    if operation.type == "Reshape":
        # However the shape was computed: the same number of entries in each row means the same number of rows.
        is_by_row = given[0] is _Kind.ROWS and _is_reshaped_by_row(operation.inputs[0], operation.outputs[0])
        return _Kind.ROWS if is_by_row else _Kind.OTHER
    if _Kind.SIZE in given or not all(tensor.shape.rank is not None for tensor in operation.inputs):
        return _Kind.OTHER
    rows = [kind is _Kind.ROWS for kind in given]
    rule = _RULES.get(operation.type)
    return _Kind.ROWS if rule is not None and rule(operation, rows) else _Kind.OTHER


def _is_one_number(tensor: tf.Tensor) -> bool:
    """Whether bounds leave a number no choice: how many columns Keras counts in is written as min(n, max(n, largest + 1))."""
    least, most = _bounds(tensor)
    return least == most


def _bounds(tensor: tf.Tensor) -> tuple[float, float]:
    """Returns the least and the most that a number may be."""
    value = tf.get_static_value(tensor)
    if value is not None and value.ndim == 0:
        return float(value), float(value)
    if tensor.op.type not in _BOUNDING or tensor.shape.rank != 0:
        return -math.inf, math.inf
    bounds = [_bounds(given) for given in tensor.op.inputs]
    least, most = zip(*bounds, strict=True)
    pick = _BOUNDING[tensor.op.type]
    return pick(least), pick(most)


def _kind_of_words(operation: Any, given: list[_Kind]) -> _Kind:
    """Returns the kind of what is made of the words of texts."""
    if operation.type == "RaggedTensorToTensor":
        return _Kind.ROWS if _are_padded_by_row(operation, given) else _Kind.OTHER
    if given[0] is _Kind.PLACES and operation.type == "StridedSlice":
        is_of_rows = all(kind is _Kind.SAME for kind in given[1:]) and _is_first_column(operation)
        kind = _Kind.SIZE if operation.inputs[0].shape.rank == 1 else _Kind.PLACES
        return kind if is_of_rows else _Kind.OTHER
    if given == [_Kind.PLACES]:
        return _Kind.PLACES if operation.type in ("Identity", "Cast") else _Kind.OTHER
    words = [kind is _Kind.WORDS for kind in given]
    is_known = all(kind in (_Kind.WORDS, _Kind.SAME) for kind in given)
    rule = _RULES.get(operation.type) if operation.type in _OF_WORDS else None
    return _Kind.WORDS if is_known and rule is not None and rule(operation, words) else _Kind.OTHER


def _are_padded_by_row(operation: Any, given: list[_Kind]) -> bool:
    """Whether the words of each row, as many as there are, become a row of a fixed length."""
    values, number, row = operation.inputs[1], operation.inputs[-2], operation.inputs[-1]
    if given != [_Kind.SAME, _Kind.WORDS, _Kind.SAME, _Kind.SIZE, _Kind.PLACES] or row.shape.rank != 1:
        return False
    if operation.get_attr("row_partition_types") != [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]:
        return False
    # Of one text, and all of its words.
    splits = [_splits(tensor) for tensor in (values, number, row)]
    return (
        splits[0] == splits[1] == splits[2]
        and len(splits[0]) == 1
        and operation.outputs[0].shape[1:].is_fully_defined()
    )


def _splits(tensor: tf.Tensor) -> set[str]:
    """Returns the operations that cut the texts of which a tensor is made into words."""
    waiting, seen, found = [tensor.op], set[str](), set[str]()
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type == "StringSplitV2":
            found.add(op.name)
        else:
            waiting += [given.op for given in op.inputs]
    return found


def _is_first_column(operation: Any) -> bool:
    """Whether a slice takes each word's row of all places [words, 2], or the number of rows of their numbers [2]."""
    begin, strides = (tf.get_static_value(operation.inputs[place]) for place in (1, 3))
    last = (operation.inputs[0].shape.rank or 0) - 1
    if begin is None or strides is None or len(begin) != last + 1 or begin[last] != 0 or strides[0] != 1:
        return False
    new, shrunk, ellipsis = (operation.get_attr(f"{mask}_mask") for mask in ("new_axis", "shrink_axis", "ellipsis"))
    is_whole = last == 0 or bool(operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1)
    return is_whole and (new, shrunk, ellipsis) == (0, 1 << last, 0)


def _is_reshaped_by_row(before: tf.Tensor, after: tf.Tensor) -> bool:
    if not (before.shape.rank and after.shape.rank and before.shape[1:].is_fully_defined()):
        return False
    return after.shape[1:].num_elements() == before.shape[1:].num_elements() != 0


def _broadcasts_apart(operation: Any, rows: list[bool]) -> bool:
    """Whether inputs other than rows are broadcast to each row as a whole, and rows meet the same rows."""
    ranks = {tensor.shape.rank for tensor, is_rows in zip(operation.inputs, rows, strict=True) if is_rows}
    (rank, *others) = ranks
    return not others and all(
        is_rows or tensor.shape.rank < rank or (tensor.shape.rank == rank and tensor.shape[0] == 1)
        for tensor, is_rows in zip(operation.inputs, rows, strict=True)
    )


def _is_along_rows(operation: Any, rows: list[bool]) -> bool:
    """Whether an operation along or between axes takes rows, and its axes are within each row."""
    place = _ALONG[operation.type] % len(rows)
    values = [is_rows for i, is_rows in enumerate(rows) if i != place]
    # SplitV's sizes are no rows.
    is_of_rows = values == [True, False] if operation.type == "SplitV" else all(values)
    rank = max(tensor.shape.rank or 0 for tensor in [*operation.inputs, *operation.outputs])
    return is_of_rows and not rows[place] and _are_within(operation.inputs[place], rank)


def _are_within(axes: tf.Tensor, rank: int) -> bool:
    """Whether all axes are known, and none is the first."""
    values = tf.get_static_value(axes)
    return values is not None and all(int(axis) not in (0, -rank) for axis in values.reshape(-1))


def _begins(values: tf.Tensor, *expected: int) -> bool:
    """Whether the first entry of `values`, or their first row, is known and equals `expected`."""
    known = tf.get_static_value(values)
    return known is not None and len(known) > 0 and tuple(known[0].reshape(-1)) == expected


def _slices_each_row(operation: Any, rows: list[bool]) -> bool:
    if rows != [True, False, False, False]:
        return False
    new, shrunk, ellipsis = (operation.get_attr(f"{mask}_mask") for mask in ("new_axis", "shrink_axis", "ellipsis"))
    if ellipsis & 1:
        # An ellipsis that covers no axis leaves the rows to the next index.
        return operation.inputs[1].shape[0] - 1 - new.bit_count() < operation.inputs[0].shape.rank
    whole = operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1
    return not (new | shrunk) & 1 and bool(whole) and _begins(operation.inputs[3], 1)


def _gathers_each_row(operation: Any, rows: list[bool]) -> bool:
    values, _, axis = operation.inputs
    axis = tf.get_static_value(axis)
    if axis is None or operation.get_attr("batch_dims") != 0:
        return False
    is_first = int(axis) in (0, -values.shape.rank)
    # Either a table is looked up for each row, or the same columns are taken of each row.
    return rows == ([False, True, False] if is_first else [True, False, False])


def _counts_each_row(operation: Any, rows: list[bool]) -> bool:
    """Whether the numbers of each row are counted, without weights."""
    return operation.inputs[0].shape.rank == 2 and rows == [True, False, False] and operation.inputs[2].shape == [0]


def _squeezes_each_row(operation: Any, rows: list[bool]) -> bool:
    axes = operation.get_attr("squeeze_dims")
    return bool(axes) and not {0, -operation.inputs[0].shape.rank} & set(axes)


def _parses_each_row(operation: Any, rows: list[bool]) -> bool:
    """Whether records are parsed to features of fixed shapes; values of sparse and ragged ones of all rows are one tensor."""
    is_dense = operation.get_attr("num_sparse") == 0 and not operation.get_attr("ragged_value_types")
    # The second input names the records in errors; there are as many as records, or none.
    return is_dense and operation.inputs[1].shape[0] == 0 and rows[0] and not any(rows[1:])


def _looks_up_each(operation: Any, rows: list[bool]) -> bool:
    """Whether the keys are rows, and what is given to those that are unknown is one for all."""
    return rows == [False, True, False] and operation.inputs[2].shape.rank == 0


# Of each operation: whether it keeps rows apart, given which of its inputs are rows.
_RULES: dict[str, Callable[[Any, list[bool]], bool]] = {
    **dict.fromkeys(_ENTRY_BY_ENTRY, lambda operation, rows: rows[0] and not any(rows[1:])),
    **dict.fromkeys(_BROADCASTING, _broadcasts_apart),
    **dict.fromkeys(_RESIZING, lambda operation, rows: rows == [True, False] and operation.inputs[0].shape.rank == 4),
    **dict.fromkeys(_ALONG, _is_along_rows),
    "AddN": lambda operation, rows: all(rows),
    "OneHot": lambda operation, rows: rows == [True, False, False, False] and operation.get_attr("axis") != 0,
    "Pack": lambda operation, rows: (
        all(rows) and operation.get_attr("axis") not in (0, -operation.outputs[0].shape.rank)
    ),
    "Unpack": lambda operation, rows: operation.get_attr("axis") not in (0, -operation.inputs[0].shape.rank),
    "Squeeze": _squeezes_each_row,
    "Transpose": lambda operation, rows: rows == [True, False] and _begins(operation.inputs[1], 0),
    "Tile": lambda operation, rows: rows == [True, False] and _begins(operation.inputs[1], 1),
    "Pad": lambda operation, rows: rows == [True, False] and _begins(operation.inputs[1], 0, 0),
    "PadV2": lambda operation, rows: rows == [True, False, False] and _begins(operation.inputs[1], 0, 0),
    "MirrorPad": lambda operation, rows: rows == [True, False] and _begins(operation.inputs[1], 0, 0),
    "Slice": lambda operation, rows: (
        rows == [True, False, False] and _begins(operation.inputs[1], 0) and _begins(operation.inputs[2], -1)
    ),
    "StridedSlice": _slices_each_row,
    "GatherV2": _gathers_each_row,
    "ParseExampleV2": _parses_each_row,
    "DecodeRaw": lambda operation, rows: rows == [True],
    "LookupTableFindV2": _looks_up_each,
    "DenseBincount": _counts_each_row,
}
# Those that take words, too: they make a value of each.
_OF_WORDS = {*_ENTRY_BY_ENTRY, *_BROADCASTING, "LookupTableFindV2"}
