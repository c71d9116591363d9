"""Finds out whether an update treats each row of a table by itself: then several servers can each update some of the rows."""

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.checked_writes import row_numbers
from fdt.program.node_graph import PASSING, Graph, Tensor, data_inputs
from fdt.program.update.elementwise import ELEMENTWISE, Scalars

_ASSIGNMENTS = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


class _Kind(enum.Enum):
    """What a tensor of an update is to its table."""

    # The table's variable, or a slot's.
    HANDLE = enum.auto()
    # A number, or another constant that says nothing about the table.
    CONSTANT = enum.auto()
    # Something for each row of the table.
    ROWS = enum.auto()
    # Something for each value of the gradient, or for each distinct row among these.
    VALUES = enum.auto()
    # The row of each value.
    NUMBERS = enum.auto()
    # The place of each value's row among the distinct ones.
    PLACES = enum.auto()
    # How many values there are, or their shape.
    COUNTS = enum.auto()
    # The table's shape.
    SHAPE = enum.auto()
    # How many rows the table has.
    NUM_ROWS = enum.auto()


class _NotByRow(Exception):
    pass


# What an operation with inputs of these kinds gives, by its outputs. Others may be added once it is clear that no row of their
# result depends on another row.
_RESULTS: dict[tuple[str, tuple[_Kind, ...]], tuple[_Kind, ...]] = {
    ("ReadVariableOp", (_Kind.HANDLE,)): (_Kind.ROWS,),
    ("Cast", (_Kind.SHAPE,)): (_Kind.SHAPE,),
    ("Cast", (_Kind.NUMBERS,)): (_Kind.NUMBERS,),
    ("Unique", (_Kind.NUMBERS,)): (_Kind.NUMBERS, _Kind.PLACES),
    ("UniqueV2", (_Kind.NUMBERS, _Kind.CONSTANT)): (_Kind.NUMBERS, _Kind.PLACES),
    ("Shape", (_Kind.NUMBERS,)): (_Kind.COUNTS,),
    ("Shape", (_Kind.VALUES,)): (_Kind.COUNTS,),
    ("Size", (_Kind.NUMBERS,)): (_Kind.COUNTS,),
    ("StridedSlice", (_Kind.COUNTS, *3 * (_Kind.CONSTANT,))): (_Kind.COUNTS,),
    ("UnsortedSegmentSum", (_Kind.VALUES, _Kind.PLACES, _Kind.COUNTS)): (_Kind.VALUES,),
    ("UnsortedSegmentSum", (_Kind.VALUES, _Kind.NUMBERS, _Kind.NUM_ROWS)): (_Kind.ROWS,),
}
_OF_ROWS = {_Kind.HANDLE, _Kind.VALUES, _Kind.NUMBERS, _Kind.CONSTANT}


@dataclasses.dataclass(frozen=True)
class RowUpdate:
    """An update that treats each row of a table by itself.

    An update of some rows does to these what the update of all does, to the last bit, once the constants that hold the table's
    shape hold the number of these rows.

    Attributes:
        shape_constants: The names of these constants.
        writes_all: Whether each step writes every row, not only those that its gradient has values for.
    """

    shape_constants: tuple[str, ...]
    writes_all: bool


def find(
    graph: Graph,
    writers: Sequence[str],
    handles: Collection[str],
    received: Sequence[str],
    shape: Sequence[int],
    scalars: Scalars,
) -> RowUpdate | None:
    """Returns what is known of a table's update; None if a row that it writes depends on other rows, or may.

    Args:
        graph: Of the update.
        writers: The operations that write the table and its slots.
        handles: The placeholders of the table and of its slots, all of the table's shape.
        received: The placeholders of the gradient's values and row numbers.
        shape: The table's shape.
        scalars: The update's numbers.
    """
    walk = _Walk(graph, handles, received, shape, scalars)
    try:
        for name in writers:
            walk.check(graph.nodes[name])
    except _NotByRow:
        return None
    # A constant that something else reads too, another table's update or what was not looked at, cannot be changed.
    users = [node for node in graph.nodes.values() if walk.found.intersection(edge[0] for edge in data_inputs(node))]
    if any(node.name not in walk.seen for node in users):
        return None
    return RowUpdate(tuple(sorted(walk.found)), any(graph.nodes[name].op in _ASSIGNMENTS for name in writers))


class _Walk:
    def __init__(
        self,
        graph: Graph,
        handles: Collection[str],
        received: Sequence[str],
        shape: Sequence[int],
        scalars: Scalars,
    ):
        self._graph, self._shape, self._scalars = graph, list(shape), scalars
        self._known: dict[str, tuple[_Kind, ...]] = dict.fromkeys(handles, (_Kind.HANDLE,))
        self._known |= dict(zip(received, ((_Kind.VALUES,), (_Kind.NUMBERS,)), strict=True))
        self.found = set[str]()

    @property
    def seen(self) -> Collection[str]:
        """The operations whose results are known."""
        return self._known

    def check(self, writer: Any) -> None:
        """Raises _NotByRow if a row that an operation writes depends on other rows."""
        kinds = [self._kind(edge) for edge in data_inputs(writer)]
        if writer.op in _ASSIGNMENTS and kinds == [_Kind.HANDLE, _Kind.ROWS]:
            return
        place = row_numbers(writer)
        by_row = place is not None and kinds[place] is _Kind.NUMBERS and _OF_ROWS.issuperset(kinds)
        if not by_row or not self._are_scalars(writer, kinds):
            raise _NotByRow

    def _kind(self, edge: Tensor) -> _Kind:
        name, place = edge
        if name not in self._known:
            self._known[name] = self._kinds(self._graph.nodes[name], edge)
        return self._known[name][place]

    def _kinds(self, node: Any, edge: Tensor) -> tuple[_Kind, ...]:
        if node.op == "Const":
            return (self._of_constant(node),)
        if edge in self._scalars:
            return (_Kind.CONSTANT,)
        kinds = tuple(self._kind(each) for each in data_inputs(node))
        if node.op in PASSING:
            return kinds
        if (node.op, kinds) in _RESULTS:
            return _RESULTS[node.op, kinds]
        if node.op == "StridedSlice" and kinds[0] is _Kind.SHAPE and self._takes_first(node):
            return (_Kind.NUM_ROWS,)
        if self._looks_rows_up(node, kinds):
            return (_Kind.VALUES,)
        by_row = set(kinds) - {_Kind.CONSTANT}
        if node.op in ELEMENTWISE and by_row in ({_Kind.ROWS}, {_Kind.VALUES}) and self._are_scalars(node, kinds):
            return (*by_row,)
        raise _NotByRow

    def _of_constant(self, node: Any) -> _Kind:
        value = tf.make_ndarray(node.attr["value"].tensor)
        if value.ndim == 1 and value.dtype.kind == "i" and value.tolist() == self._shape:
            self.found.add(node.name)
            return _Kind.SHAPE
        return _Kind.CONSTANT

    def _are_scalars(self, node: Any, kinds: Sequence[_Kind]) -> bool:
        """Whether constants among an operation's inputs are numbers: a longer one has something for each row, or might."""
        edges = zip(data_inputs(node), kinds, strict=True)
        return all(edge in self._scalars for edge, kind in edges if kind is _Kind.CONSTANT)

    def _takes_first(self, node: Any) -> bool:
        """Whether a slice takes the first number of a vector."""
        begin = self._graph.nodes[data_inputs(node)[1][0]]
        return begin.op == "Const" and node.attr["shrink_axis_mask"].i == 1 and self._is_zero(begin)

    def _looks_rows_up(self, node: Any, kinds: Sequence[_Kind]) -> bool:
        if "batch_dims" in node.attr and node.attr["batch_dims"].i:
            return False
        if node.op == "ResourceGather":
            return list(kinds) == [_Kind.HANDLE, _Kind.NUMBERS]
        if node.op != "GatherV2" or list(kinds) != [_Kind.ROWS, _Kind.NUMBERS, _Kind.CONSTANT]:
            return False
        axis = self._graph.nodes[data_inputs(node)[2][0]]
        return axis.op == "Const" and self._is_zero(axis)

    @staticmethod
    def _is_zero(constant: Any) -> bool:
        return not tf.make_ndarray(constant.attr["value"].tensor).any()


def of_some_rows(update: Any, num_rows: Mapping[str, int]) -> Any:
    """Returns the graph of an update in which constants hold another number of rows.

    Args:
        update: GraphDef.
        num_rows: From the names of constants that hold the shape of a table, to the number of rows.
    """
    changed = type(update).FromString(update.SerializeToString())
    for node in changed.node:
        if node.name in num_rows:
            value = tf.make_ndarray(node.attr["value"].tensor).copy()
            value[0] = num_rows[node.name]
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return changed
