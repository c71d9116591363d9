"""Numbers that are computed from sums and means over the rows of a batch: the root of a mean, a quotient of two sums.

Of such a number a worker's rows tell nothing by themselves: the mean of two roots is not the root of the mean. What it is made
of can be added up, though. Every worker computes the number from the sums over all workers, and its part of the
gradient is that of its own sums, times how the number changes with each of them (the chain rule).
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from fdt.capture.step.reductions import Reader, Reduced
from fdt.capture.step.shares import nonzero
from fdt.holes import Holes

# Operations that run others; those inside are not looked at.
_CALLS = {"PartitionedCall", "StatelessIf", "StatelessWhile", "StatelessCase", "Placeholder", "PlaceholderWithDefault"}


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """A number of a step's graph, and what it is computed from.

    Attributes:
        number: The scalar, of this worker's rows.
        reduced: Sums and means over rows, each with what it is.
        others: What does not follow the rows.
        operations: Those that compute the number from them.
    """

    number: tf.Tensor
    reduced: Sequence[tuple[tf.Tensor, Reduced]]
    others: Sequence[tf.Tensor]
    operations: Sequence[tf.Operation]

    def whole(self, holes: Holes) -> "Whole":
        """Computes the number from the sums over all workers."""
        given = [(tensor, _over_workers(holes, tensor, kind)) for tensor, kind in self.reduced]
        given += [(tensor, tensor) for tensor in self.others]
        definition = tf.compat.v1.GraphDef(versions=self.number.graph.graph_def_versions)
        for operation in self.operations:
            node = definition.node.add()
            node.CopyFrom(operation.node_def)
            node.input[:] = [name for name in node.input if not name.startswith("^")]
            for attribute in [name for name in node.attr if name.startswith("_")]:
                del node.attr[attribute]
        replaced = {tensor.name: value for tensor, value in given}
        (number,) = tf.graph_util.import_graph_def(
            definition, input_map=replaced, return_elements=[self.number.name], name="whole"
        )
        kinds = [kind for _, kind in self.reduced] + [Reduced.SAME] * len(self.others)
        return Whole(number, [(t, value, kind) for (t, value), kind in zip(given, kinds, strict=True)], holes.share)


@dataclasses.dataclass(frozen=True)
class Whole:
    """The number of the whole batch, equal for all workers.

    Attributes:
        number: It. No tape knows how it came about.
        given: What it is computed from: this worker's tensor, the value over all workers, and what it is.
        share: This worker's.
    """

    number: tf.Tensor
    given: Sequence[tuple[tf.Tensor, tf.Tensor, Reduced]]
    share: tf.Tensor

    def slopes(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns this worker's tensors, and how the number changes with each, such that shares of it add up."""
        values = [value for _, value, _ in self.given]
        changes = tf.gradients(self.number, values, stop_gradients=values)
        found = []
        for (tensor, _, kind), change in zip(self.given, changes, strict=True):
            if change is not None:
                factor = 1.0 / nonzero(self.share, tensor.dtype) if kind is Reduced.SUM else 1.0
                found.append((tensor, tf.stop_gradient(tf.convert_to_tensor(change) * factor)))
        return found

    def differentiable(self) -> tf.Tensor:
        """Returns the number such that a tape that records now finds its gradient."""
        total = tf.stop_gradient(self.number)
        for tensor, slope in self.slopes():
            total += tf.reduce_sum(slope * (tensor - tf.stop_gradient(tensor)))
        return total


def aggregate(number: tf.Tensor, reader: Reader) -> Aggregate | None:
    """Returns what a number is computed from, if that are sums and means over rows; else None.

    Args:
        number: Scalar of a step's graph.
        reader: Of the same graph.
    """
    reduced: dict[str, tuple[tf.Tensor, Reduced]] = {}
    others: dict[str, tf.Tensor] = {}
    operations: dict[str, tf.Operation] = {}
    waiting = [number]
    while waiting:
        tensor = waiting.pop()
        operation = tensor.op
        if tensor.name in reduced or tensor.name in others or operation.name in operations:
            continue
        if not reader.follows(operation):
            others[tensor.name] = tensor
            continue
        kind = Reduced.SUM if reader.counts_rows(tensor) else reader.read(tensor)
        if kind in (Reduced.SUM, Reduced.MEAN):
            if kind is Reduced.MEAN and not tensor.dtype.is_floating:
                return None
            reduced[tensor.name] = (tensor, kind)
        elif kind is Reduced.ROWS or not operation.inputs or operation.op_def.is_stateful or operation.type in _CALLS:
            return None
        else:
            operations[operation.name] = operation
            waiting += operation.inputs
    if not reduced or not operations:
        return None
    return Aggregate(number, list(reduced.values()), list(others.values()), list(operations.values()))


def _over_workers(holes: Holes, tensor: tf.Tensor, kind: Reduced) -> tf.Tensor:
    return holes.sum(tensor if kind is Reduced.SUM else tensor * tf.cast(holes.share, tensor.dtype))
