"""Numbers that are computed from sums and means over the rows of a batch, or from rows that have met.

The root of a mean, a quotient of two sums, a loss that compares every row with every other: of such a number a worker's rows
tell nothing by themselves; the mean of two roots is not the root of the mean. What it is made of can be brought together,
though: sums are added up, rows put one after the other. Every worker computes the number from what all have, and its part of
the gradient is that of its own sums and rows, times how the number changes with each of them (the chain rule).
"""

import dataclasses
import enum
from collections.abc import Sequence

import tensorflow as tf

from fdt.capture.step.reductions import Reader, Reduced, reads_variables
from fdt.capture.step.shares import nonzero
from fdt.holes import Holes

# What runs others (holes among them), and where something comes in from outside. Branches may be computed again.
_CALLS = {"PartitionedCall", "StatelessWhile", "Placeholder", "PlaceholderWithDefault"}
# What Horovod puts one after the other.
_GATHERED = {tf.float16, tf.float32, tf.float64, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.int64, tf.bool}


class Part(enum.Enum):
    """How a tensor that a number is computed from is brought together."""

    SUM = "added up"
    MEAN = "added up, weighted by the shares"
    ROWS = "put one after the other"
    SHAPE = "of all rows"
    SAME = "equal for all workers"


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """A number of a step's graph, and what it is computed from.

    Attributes:
        number: It, of this worker's rows.
        parts: What it is computed from.
        operations: Those that compute it from them.
    """

    number: tf.Tensor
    parts: Sequence[tuple[tf.Tensor, Part]]
    operations: Sequence[tf.Operation]

    def whole(self, holes: Holes) -> "Whole":
        """Computes the number from what all workers have."""
        given = [_Given(tensor, part, holes) for tensor, part in self.parts]
        definition = tf.compat.v1.GraphDef(versions=self.number.graph.graph_def_versions)
        for operation in self.operations:
            node = definition.node.add()
            node.CopyFrom(operation.node_def)
            node.input[:] = [name for name in node.input if not name.startswith("^")]
            for attribute in [name for name in node.attr if name.startswith("_")]:
                del node.attr[attribute]
        (number,) = tf.graph_util.import_graph_def(
            definition,
            input_map={each.tensor.name: each.value for each in given},
            return_elements=[self.number.name],
            name="whole",
        )
        return Whole(number, given)


class _Given:
    """One tensor that a number is computed from.

    Attributes:
        tensor: This worker's.
        value: Of all workers.
    """

    def __init__(self, tensor: tf.Tensor, part: Part, holes: Holes):
        self.tensor, self._part, self._share = tensor, part, holes.share
        self._first: tf.Tensor | None = None
        if part is Part.SUM:
            self.value = holes.sum(tensor)
        elif part is Part.MEAN:
            self.value = holes.sum(tensor * tf.cast(holes.share, tensor.dtype))
        elif part is Part.ROWS:
            self.value, self._first = holes.rows(tensor)
        elif part is Part.SHAPE:
            self.value = tf.concat([holes.sum(tensor[:1]), tensor[1:]], 0)
        else:
            self.value = tensor

    def slope(self, change: tf.Tensor) -> tf.Tensor:
        """Returns, for how the number changes with the value, how it does with the tensor, such that shares of that add up."""
        change = tf.convert_to_tensor(change)
        if self._part is Part.ROWS:
            change = self._own_rows(change)
        if self._part in (Part.SUM, Part.ROWS):
            change /= nonzero(self._share, change.dtype)
        change.set_shape(self.tensor.shape)
        return tf.stop_gradient(change)

    def _own_rows(self, change: tf.Tensor) -> tf.Tensor:
        assert self._first is not None
        # A worker without rows computes on a stand-in, which is not among those of all.
        count = tf.shape(self.tensor)[0]
        first = tf.minimum(self._first, tf.shape(change)[0] - count)
        own: tf.Tensor = change[first : first + count]
        return own


@dataclasses.dataclass(frozen=True)
class Whole:
    """The number of the whole batch, equal for all workers.

    Attributes:
        number: It. No tape knows how it came about.
        given: What it is computed from.
    """

    number: tf.Tensor
    given: Sequence[_Given]

    def slopes(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns this worker's tensors, and how the number changes with each, such that shares of it add up."""
        given = [each for each in self.given if each.value.dtype.is_floating]
        values = [each.value for each in given]
        changes = tf.gradients(self.number, values, stop_gradients=values)
        pairs = zip(given, changes, strict=True)
        return [(each.tensor, each.slope(change)) for each, change in pairs if change is not None]

    def differentiable(self) -> tf.Tensor:
        """Returns the number such that a tape that records now finds its gradient."""
        total = tf.stop_gradient(self.number)
        for tensor, slope in self.slopes():
            total += tf.reduce_sum(slope * (tensor - tf.stop_gradient(tensor)))
        return total


def aggregate(number: tf.Tensor, reader: Reader) -> Aggregate | None:
    """Returns what a number is computed from, if it can be computed from what all workers have; else None.

    Args:
        number: Of a step's graph.
        reader: Of the same graph.
    """
    parts: dict[str, tuple[tf.Tensor, Part]] = {}
    operations: dict[str, tf.Operation] = {}
    waiting = [number]
    while waiting:
        tensor = waiting.pop()
        operation = tensor.op
        if tensor.name in parts or operation.name in operations:
            continue
        part = _part(tensor, reader)
        if part is not None:
            if not _travels(tensor, part):
                return None
            parts[tensor.name] = (tensor, part)
        elif not operation.inputs or not _is_plain(operation):
            return None
        else:
            operations[operation.name] = operation
            waiting += operation.inputs
    if not operations or {part for _, part in parts.values()} <= {Part.SAME}:
        return None
    return Aggregate(number, list(parts.values()), list(operations.values()))


def _part(tensor: tf.Tensor, reader: Reader) -> Part | None:
    """Returns how a tensor is brought together; None if it has to be computed from what is."""
    if not reader.follows(tensor.op):
        return Part.SAME
    if reader.mixes(tensor):
        return None
    if reader.counts_rows(tensor):
        return Part.SUM
    if tensor.op.type == "Shape":
        (shaped,) = tensor.op.inputs
        return Part.SHAPE if not reader.mixes(shaped) and reader.read(shaped) is Reduced.ROWS else None
    kinds = {Reduced.SUM: Part.SUM, Reduced.MEAN: Part.MEAN, Reduced.ROWS: Part.ROWS}
    return kinds.get(reader.read(tensor))


def _travels(tensor: tf.Tensor, part: Part) -> bool:
    if part is Part.SAME:
        # A layer between rows that meet and the loss: every worker would compute it for all rows.
        return (tensor.shape.rank or 0) < 2 or not reads_variables(tensor.op)
    if part is Part.ROWS:
        return tensor.dtype in _GATHERED
    return part is not Part.MEAN or tensor.dtype.is_floating


def _is_plain(operation: tf.Operation) -> bool:
    """Whether an operation may be computed again: the same comes out, and its gradient is TensorFlow's."""
    if operation.op_def.is_stateful or operation.type in _CALLS:
        return False
    return "_gradient_op_type" not in operation.node_def.attr
