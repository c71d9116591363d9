"""Tells, from the graph, where rows of a batch meet: pairs of rows compared, some of them picked, a row less the mean of all.

Up to there a tensor's row i is made of the batch's row i, and the rows of all workers, put one after the other, are those of
one machine. From there on a worker would have to know the others' rows.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

import tensorflow as tf


class Follows(Protocol):
    """What is known of a step's graph."""

    def follows(self, operation: Any) -> bool:
        """Whether an operation's value depends on the batch or its size."""

    def is_size(self, operation: Any) -> bool:
        """Whether an operation's value is computed from sizes and the share alone."""


# Entry by entry, the smaller one repeated.
_BROADCASTING = {
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "Pow", "SquaredDifference"),
    *("SelectV2", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr"),
    *("FloorMod", "FloorDiv", "Atan2", "Xlogy", "MulNoNan"),
}
# What they have at place i need not be of row i.
_PICKING = {
    *("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff", "RandomShuffle"),
    *("DynamicPartition", "DynamicStitch", "ParallelDynamicStitch", "ScatterNd", "TensorScatterUpdate"),
    *("TensorScatterAdd", "SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "UnsortedSegmentSum"),
    *("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "Bincount", "DenseBincount"),
}
# Which take rows by their places.
_BY_PLACE = {"StridedSlice", "Slice", "Split", "SplitV", "Unpack"}
# Along the last axis, or to a matrix of it: of vectors, over the rows.
_OF_LAST_AXIS = {"Softmax", "LogSoftmax", "TopKV2", "Diag", "MatrixDiag", "MatrixDiagV2", "MatrixDiagV3"}
_SIZES = {"Shape", "Size", "ShapeN"}


class Behind:
    """Whether behind an operation of a graph, or in it, there is one of some kind; each is looked at once."""

    def __init__(self, is_one: Callable[[Any], bool], behind: Callable[[Any], Sequence[Any]]):
        """Takes what tells such an operation, and what returns those directly behind another."""
        self._is_one, self._behind = is_one, behind
        self._known: dict[str, bool] = {}

    def __call__(self, operation: Any) -> bool:
        """Returns it."""
        # No recursion: a path may have thousands of operations.
        waiting, entered = [operation], set()
        while waiting:
            current = waiting[-1]
            if current.name in self._known:
                waiting.pop()
                continue
            found = self._is_one(current)
            behind = [] if found else self._behind(current)
            unknown = [each for each in behind if each.name not in self._known]
            if not unknown:
                self._known[current.name] = found or any(self._known[each.name] for each in behind)
            elif current.name in entered:
                # A loop of TensorFlow 1's: of those in it each would wait for the other.
                return self._search(operation)
            entered.add(current.name)
            waiting += unknown
        return self._known[operation.name]

    def _search(self, operation: Any) -> bool:
        waiting, seen = [operation], {operation.name}
        while waiting:
            current = waiting.pop()
            if self._is_one(current):
                self._known[operation.name] = True
                return True
            unseen = [each for each in self._behind(current) if each.name not in seen]
            seen.update(each.name for each in unseen)
            waiting += unseen
        self._known.update(dict.fromkeys(seen, False))
        return False


class Mixing:
    """Follows the rows of the batch back from a tensor to where they come in.

    What a layer of Keras's own does is taken to keep them apart: recurrent layers turn batch and time round and back, and
    batch normalisation is told of elsewhere.
    """

    def __init__(self, graph: Follows, layers: Container[str] = (), means: Container[str] = ()):
        """Starts without having read anything.

        Args:
            graph: What follows the batch.
            layers: Names of the operations that are inside of Keras's own layers.
            means: Names of tensors of which it is known that the shares of all workers add up.
        """
        self._graph, self._layers, self._means = graph, layers, means
        self._have_met = Behind(self._is_meeting, self._behind)
        self._picked = Behind(self._is_picking, self._behind)
        self._breaking: dict[str, Callable[[Any], bool]] = {
            "Range": lambda operation: any(map(self._counts_rows, operation.inputs)),
            "MatMul": lambda operation: self._multiplies(operation, "transpose_a"),
            "BatchMatMul": self._multiplies_many,
            "BatchMatMulV2": self._multiplies_many,
            "BatchMatMulV3": self._multiplies_many,
            "Einsum": self._sums_products,
            "ExpandDims": lambda operation: _has_zero(operation.inputs[1]),
            "Pack": lambda operation: operation.get_attr("axis") == 0,
            "Unpack": lambda operation: operation.get_attr("axis") == 0,
            "Split": lambda operation: _has_zero(operation.inputs[0], operation.inputs[1].shape.rank),
            "SplitV": lambda operation: _has_zero(operation.inputs[2], operation.inputs[0].shape.rank),
            "ConcatV2": lambda operation: _has_zero(operation.inputs[-1], operation.inputs[0].shape.rank),
            "Transpose": lambda operation: not _begins(operation.inputs[1], 0),
            "Tile": lambda operation: not _begins(operation.inputs[1], 1),
            "BroadcastTo": lambda operation: operation.outputs[0].shape.rank != operation.inputs[0].shape.rank,
            "Reshape": lambda operation: operation.outputs[0].shape.rank == 0 or not _is_open(operation.outputs[0]),
            "StridedSlice": _slices_rows,
            "Slice": lambda operation: not (_begins(operation.inputs[1], 0) and _begins(operation.inputs[2], -1)),
            "GatherV2": self._gathers_rows,
            "GatherNd": lambda operation: self._has_rows(operation.inputs[0]),
            "Cumsum": lambda operation: _has_zero(operation.inputs[1], operation.inputs[0].shape.rank),
            "Cumprod": lambda operation: _has_zero(operation.inputs[1], operation.inputs[0].shape.rank),
            "ReverseV2": lambda operation: _has_zero(operation.inputs[1], operation.inputs[0].shape.rank),
            "Roll": lambda operation: _has_zero(operation.inputs[2], operation.inputs[0].shape.rank),
        }

    def mixes(self, tensor: tf.Tensor) -> bool:
        """Whether rows have met in something of which a tensor is made, other than by being added up."""
        return tensor.name not in self._means and self._have_met(tensor.op)

    def picks(self, tensor: tf.Tensor) -> bool:
        """Whether some of the rows have been picked by their places, so that the first dimension may be no batch at all."""
        return tensor.name not in self._means and self._picked(tensor.op)

    def _behind(self, operation: Any) -> list[Any]:
        """Returns the operations through which rows come to this one."""
        if operation.type in _SIZES or not self._graph.follows(operation):
            return []
        return [tensor.op for tensor in operation.inputs if tensor.name not in self._means]

    def _is_meeting(self, operation: Any) -> bool:
        return bool(self._behind(operation)) and self._breaks(operation)

    def _is_picking(self, operation: Any) -> bool:
        # Where rows have met, the first dimension may be another.
        is_one = operation.type in _BY_PLACE and self._is_meeting(operation)
        return is_one and not any(map(self._have_met, self._behind(operation)))

    def _breaks(self, operation: Any) -> bool:
        if operation.name in self._layers:
            return False
        if operation.type == "Range":
            return self._breaking["Range"](operation)
        if operation.type in _BROADCASTING:
            return self._broadcasts_rows(operation)
        if not any(map(self._has_rows, operation.inputs)):
            return False
        if operation.type in _OF_LAST_AXIS:
            return operation.inputs[0].shape.rank == 1
        breaks = self._breaking.get(operation.type)
        return operation.type in _PICKING if breaks is None else breaks(operation)

    def _has_rows(self, tensor: tf.Tensor) -> bool:
        return self.follows_rows(tensor) and _is_open(tensor)

    def follows_rows(self, tensor: tf.Tensor) -> bool:
        """Whether a value depends on rows of the batch, or on their number, not on other sizes alone."""
        return self._graph.follows(tensor.op) and (not self._graph.is_size(tensor.op) or self._counts_rows(tensor))

    def _broadcasts_rows(self, operation: Any) -> bool:
        following = [t for t in operation.inputs if self.follows_rows(t)]
        ranks = {t.shape.rank for t in following if _is_open(t)}
        # A vector beside a column makes a matrix of all pairs; a number that follows the batch is something of all rows.
        return len(ranks) > 1 or (bool(ranks) and not all(map(_is_open, following)))

    def _multiplies(self, operation: Any, transposed: str) -> bool:
        left, right = operation.inputs
        return self._has_rows(right) or (operation.get_attr(transposed) and self._has_rows(left))

    def _multiplies_many(self, operation: Any) -> bool:
        ranks = {t.shape.rank for t in operation.inputs if self._has_rows(t)}
        return self._multiplies(operation, "adj_x") if 2 in ranks else len(ranks) > 1

    def _sums_products(self, operation: Any) -> bool:
        terms, result = operation.get_attr("equation").decode().split("->")
        firsts = {
            term.strip()[:1]
            for term, operand in zip(terms.split(","), operation.inputs, strict=True)
            if self._has_rows(operand)
        }
        return firsts != {result.strip()[:1]}

    def _gathers_rows(self, operation: Any) -> bool:
        values, indices, axis = operation.inputs
        if not self._has_rows(values):
            return False
        return operation.get_attr("batch_dims") == 0 and (_has_zero(axis) or self._has_rows(indices))

    def _counts_rows(self, tensor: tf.Tensor) -> bool:
        """Whether a number is made of the number of rows, not of other sizes."""
        if not self._graph.follows(tensor.op):
            return False
        waiting, seen = [tensor], set()
        while waiting:
            current = waiting.pop()
            operation = current.op
            if operation.type == "Size":
                if self._has_rows(operation.inputs[0]):
                    return True
                continue
            if operation.inputs and operation.inputs[0].op.type == "Shape":
                if operation.type == "StridedSlice" and not _begins(operation.inputs[1], 0):
                    continue
                if operation.type == "Unpack" and current.value_index != 0:
                    continue
                if _is_open(operation.inputs[0].op.inputs[0]):
                    return True
            elif operation.name not in seen and operation.type not in _SIZES:
                seen.add(operation.name)
                waiting += operation.inputs
        return False


def _is_open(tensor: tf.Tensor) -> bool:
    """Whether a tensor may have any number of rows."""
    return tensor.shape.rank is None or (tensor.shape.rank > 0 and tensor.shape[0] is None)


def _has_zero(axes: tf.Tensor, rank: int | None = None) -> bool:
    """Whether axes have the first among them, or are not known."""
    values = tf.get_static_value(axes)
    return values is None or any(int(axis) == 0 or int(axis) == -(rank or 0) for axis in values.reshape(-1))


def _begins(values: tf.Tensor, expected: int) -> bool:
    """Whether the first of some numbers is known to be this."""
    known = tf.get_static_value(values, partial=True)
    return known is not None and len(known) > 0 and known[0] == expected


def _slices_rows(operation: Any) -> bool:
    """Whether a slice is more, or less, than all rows."""
    if operation.get_attr("ellipsis_mask") & 1:
        return False
    if (operation.get_attr("new_axis_mask") | operation.get_attr("shrink_axis_mask")) & 1:
        return True
    whole = operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1
    return not whole or not _begins(operation.inputs[3], 1)
