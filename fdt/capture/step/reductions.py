"""Tells, from the graph, whether a number is a mean over the rows of a batch, a sum over them, or a quotient of two sums.

A mean over a worker's rows, weighted by the worker's share, is its part of the mean over all rows; of a sum that is not so, nor
of a sum divided by another (by the number of words that are no padding). The graph says which one it is where the last
reductions are plain; where it does not, the answer is `UNKNOWN`.
"""

import dataclasses
import enum
from collections.abc import Container
from typing import Any

import tensorflow as tf

from fdt.capture.step.mixing import Behind, Mixing
from fdt.capture.step.writes import draws


class Reduced(enum.Enum):
    """How a tensor follows the rows of the batch."""

    SAME = "it does not"
    ROWS = "one entry for each row"
    MEAN = "a mean over rows"
    SUM = "a sum over rows"
    RATIO = "a sum over rows divided by another"
    # A sum plus something that is none.
    MIXED = "a sum over rows together with something that is none"
    UNKNOWN = "in a way that the graph does not show"


@dataclasses.dataclass(frozen=True)
class Reduction:
    """What was found of a number.

    Attributes:
        kind: How it follows the rows.
        divisor: Of a ratio: what it is divided by, as a sum over rows.
    """

    kind: Reduced
    divisor: tf.Tensor | None = None


# Each entry, or row, of what comes out is made of the same one of what goes in, and twice of it is twice as much.
_LINEAR = {
    "Identity",
    "Neg",
    "Cast",
    "Snapshot",
    "EnsureShape",
    "PreventGradient",
    "StopGradient",
    "ExpandDims",
    "Squeeze",
}
_SUMS = {"Add", "AddV2", "AddN", "Sub"}
_QUOTIENTS = {"RealDiv", "DivNoNan", "Div"}
_ENTRY_BY_ENTRY = {
    *_LINEAR,
    *_SUMS,
    *_QUOTIENTS,
    *(
        "Abs",
        "Exp",
        "Log",
        "Log1p",
        "Maximum",
        "Minimum",
        "Mul",
        "Pow",
        "Relu",
        "SelectV2",
        "Sigmoid",
        "Softplus",
        "Sqrt",
    ),
    *("Square", "SquaredDifference", "Tanh"),
}
# What they have at place i need not be of row i.
_REORDERING = {"Transpose", "TensorListStack", "TensorListConcatV2", "StridedSlice", "GatherV2", "Unpack", "Pack"}
_SIZES = {"Shape", "Size", "ShapeN"}


def reduced(tensor: tf.Tensor, batch: set[str], share: tf.Tensor) -> Reduction:
    """Returns how a tensor of a step's graph follows the rows of the batch.

    Args:
        tensor: Of the graph.
        batch: Names of the operations through which the batch comes in.
        share: The worker's share: a quotient by it is one by a number of rows.
    """
    return reduction(tensor, Reader(batch, share))


def reduction(tensor: tf.Tensor, reader: "Reader") -> Reduction:
    """Returns the same, with a reader of the graph."""
    if not reader.is_of(tensor):
        return Reduction(Reduced.UNKNOWN)
    try:
        kind = reader.read(tensor)
    except RecursionError:  # a sum of hundreds of terms, one after the other
        return Reduction(Reduced.UNKNOWN)
    return Reduction(kind, reader.divisor if kind is Reduced.RATIO else None)


class Reader:
    """Follows the rows of the batch through a step's graph.

    Attributes:
        divisor: Of the ratio that was found last.
    """

    def __init__(
        self,
        batch: set[str],
        share: tf.Tensor,
        means: Container[str] = (),
        layers: Container[str] = (),
        alike: Container[str] = (),
    ):
        """Starts without having read anything.

        Args:
            batch: Names of the operations through which the batch comes in.
            share: The worker's share.
            means: Names of tensors of which it is known that the shares of all workers add up.
            layers: Names of the operations inside of Keras's own layers.
            alike: Names of operations whose outputs all workers have alike, whatever they are made of.
        """

        def behind(operation: Any) -> list[Any]:
            return [] if operation.name in alike else [tensor.op for tensor in operation.inputs]

        self._means = means
        self._mixing = Mixing(self, layers, means)
        self._share = share
        # Of the ratio that was found; there is no second one in what is only scaled afterwards.
        self.divisor: tf.Tensor | None = None
        self._known: dict[str, Reduced] = {}
        self._follows = Behind(lambda operation: operation.name in batch or operation.name == share.op.name, behind)
        self._draws = Behind(lambda operation: draws(operation.type), behind)
        self._has_entries = Behind(
            lambda operation: operation.name in batch, lambda op: [] if op.type in _SIZES else behind(op)
        )

    def is_of(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is of the graph that is read."""
        return tensor.graph is self._share.graph

    def mixes(self, tensor: tf.Tensor) -> bool:
        """Whether rows of the batch have met in something of which a tensor is made; see `fdt.capture.step.mixing`."""
        return self._mixing.mixes(tensor)

    def picks(self, tensor: tf.Tensor) -> bool:
        """Whether rows have been picked by their places."""
        return self._mixing.picks(tensor)

    def is_workers_own(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor stands on rows of the batch, on their number, or on numbers that are drawn."""
        return self._mixing.follows_rows(tensor) or self._draws(tensor.op)

    def read(self, tensor: tf.Tensor) -> Reduced:
        """Returns how a tensor follows the rows."""
        if tensor.name not in self._known:
            self._known[tensor.name] = self._read(tensor)
        return self._known[tensor.name]

    def _read(self, tensor: tf.Tensor) -> Reduced:
        operation = tensor.op
        if tensor.name in self._means:
            return Reduced.MEAN
        if not self.follows(operation):
            return Reduced.SAME
        if operation.type in ("Sum", "Mean"):
            return self._reduction(operation)
        if operation.type in _LINEAR:
            return self.read(operation.inputs[0])
        if operation.type in _SUMS:
            return together([self.read(part) for part in operation.inputs])
        if operation.type == "Mul":
            parts = [part for part in operation.inputs if self.follows(part.op)]
            if len(parts) == 1:
                return self.read(parts[0])
        if operation.type in _QUOTIENTS:
            return self._quotient(operation)
        return self._of_rows(tensor)

    def _reduction(self, operation: Any) -> Reduced:
        values, axes = operation.inputs
        inside = self.read(values)
        if inside is not Reduced.ROWS:
            return inside
        chosen = tf.get_static_value(axes)
        if chosen is None or values.shape.rank is None:
            # All of them, most often: the axes are then computed from the rank.
            return Reduced.UNKNOWN
        if 0 not in {int(axis) % values.shape.rank for axis in chosen.reshape(-1)}:
            return Reduced.ROWS
        return Reduced.SUM if operation.type == "Sum" else Reduced.MEAN

    def _quotient(self, operation: Any) -> Reduced:
        above, below = operation.inputs
        inside = self.read(above)
        if not self.follows(below.op):
            return inside
        if inside is Reduced.SUM and self.is_size(below.op):
            return Reduced.MEAN
        if inside is Reduced.ROWS:
            return Reduced.ROWS
        counted = self._above_zero(below)
        if inside in (Reduced.SUM, Reduced.MEAN) and self.read(counted) is inside and not reads_variables(counted.op):
            weight = 1.0 if inside is Reduced.SUM else tf.cast(self._share, counted.dtype)
            self.divisor = counted * weight
            return Reduced.RATIO
        return Reduced.UNKNOWN

    def _above_zero(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns what a divisor is without the constant that keeps it from being zero."""
        while tensor.op.type in ("Maximum", "AddV2", "Cast", "Identity"):
            parts = [part for part in tensor.op.inputs if self.follows(part.op)]
            if len(parts) != 1:
                break
            tensor = parts[0]
        return tensor

    def _of_rows(self, tensor: tf.Tensor) -> Reduced:
        if not tensor.shape.rank or tensor.shape[0] is not None:
            return Reduced.UNKNOWN
        waiting, seen = [tensor.op], set()
        while waiting:
            operation = waiting.pop()
            if operation.type in _REORDERING or self._reduces_rows(operation):
                return Reduced.UNKNOWN
            if operation.name not in seen and operation.type in _ENTRY_BY_ENTRY:
                seen.add(operation.name)
                waiting += [part.op for part in operation.inputs]
        return Reduced.ROWS

    def _reduces_rows(self, operation: Any) -> bool:
        """Whether what comes out has something of all rows: a row less the mean of all is none of a worker's own."""
        if operation.type not in ("Sum", "Mean") or not self.follows(operation):
            return False
        return self.read(operation.outputs[0]) in (Reduced.SUM, Reduced.MEAN)

    def follows(self, operation: Any) -> bool:
        """Whether an operation's value depends on the batch or its size."""
        return self._follows(operation)

    def counts_rows(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is the number of rows of another, or of its entries."""
        operation = tensor.op
        if operation.type == "Size":
            (counted,) = operation.inputs
        elif operation.type == "StridedSlice" and operation.inputs[0].op.type == "Shape":
            counted = operation.inputs[0].op.inputs[0]
            if tensor.shape.rank != 0 or tf.get_static_value(operation.inputs[1]) != [0]:
                return False
        else:
            return False
        return self.follows(operation) and self.read(counted) is Reduced.ROWS

    def is_size(self, operation: Any) -> bool:
        """Whether an operation's value is computed from sizes and the share alone."""
        return not self._has_entries(operation)


def reads_variables(operation: Any) -> bool:
    """Whether an operation's value is computed from a variable's."""
    waiting, seen = [operation], set()
    while waiting:
        current = waiting.pop()
        if current.type in ("ReadVariableOp", "ResourceGather"):
            return True
        if current.name not in seen:
            seen.add(current.name)
            waiting += [part.op for part in current.inputs]
    return False


def together(parts: list[Reduced]) -> Reduced:
    """Returns how a sum of several parts follows the rows."""
    found = set(parts) - {Reduced.SAME}
    if not found:
        return Reduced.SAME
    if len(found) == 1:
        (only,) = found
        if Reduced.SAME not in parts:
            return Reduced.UNKNOWN if only is Reduced.RATIO and len(parts) > 1 else only
        return {Reduced.SUM: Reduced.MIXED, Reduced.RATIO: Reduced.UNKNOWN}.get(only, only)
    return Reduced.MIXED if found == {Reduced.SUM, Reduced.MEAN} else Reduced.UNKNOWN
