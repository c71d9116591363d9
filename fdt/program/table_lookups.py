"""Finds the tables of a step that are only looked up: a worker needs a few of their rows, not all of them.

A table is a trained variable whose gradients are sparse. It is only looked up if every use of it in the computation of outputs
and gradients is a lookup or asks for its shape, and if the row numbers can be computed before any parameter is known.

This is for asynchronous workers, which ask servers for rows before a step runs. `fdt.division.tables` finds tables for
synchronous ones, whose step looks rows up while it runs, and updates the table too.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.node_graph import PASSING, Graph, Tensor, data_inputs, tensor
from fdt.program.step_program import dtype_of
from fdt.v1 import program_pb2

# A smaller table is sent whole: that is one message, while row numbers and rows are two.
LEAST_BYTES = 128 << 10
_SHAPES = {"Shape", "VariableShape"}
_LOOKUPS = {"Gather", "GatherV2", "ResourceGather"}
# Nodes that any part of a graph may have for itself.
COPIED = {"Const", "Placeholder"}
_ON_SERVERS = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """An operation that looks up rows of a table.

    Attributes:
        node: Its name.
        row_numbers: The tensor with the rows' numbers, of any shape.
    """

    node: str
    row_numbers: Tensor


@dataclasses.dataclass(frozen=True)
class ByRows:
    """A table that is only looked up.

    Attributes:
        lookups: One or more.
        shapes: Names of the operations that ask for its shape.
    """

    lookups: tuple[Lookup, ...]
    shapes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Whole:
    """A table of which a worker needs every row.

    Attributes:
        reason: Why, as part of a sentence: "MatMul uses all of it".
    """

    reason: str


def find_tables(
    source: program_pb2.StepProgram, graph: Graph, results: Iterable[Tensor]
) -> Mapping[int, ByRows | Whole]:
    """Returns a verdict for each table of `LEAST_BYTES` or more, by the variable's index.

    Args:
        source: The program.
        graph: The part of its step that computes outputs and gradients.
        results: The tensors that this part computes for others.
    """
    return _Finder(source, graph, set(results)).find()


def tables_of(source: program_pb2.StepProgram) -> Mapping[int, ByRows | Whole]:
    """Returns the verdicts of `find_tables` for a whole step, update included."""
    if not _large_tables(source):
        return {}
    graph = Graph(tf.compat.v1.MetaGraphDef.FromString(source.step.meta_graph).graph_def)
    marks = {hole.function for hole in source.holes if hole.kind == program_pb2.Hole.KIND_GRADIENTS}
    holes = {n.name for n in graph.nodes.values() if "f" in n.attr and n.attr["f"].func.name in marks}
    results = [tensor(name) for name in source.step.outputs]
    results += [edge for name in holes for edge in data_inputs(graph.nodes[name])]
    update = graph.descendants(holes)
    on_servers = {source.step.variables[i] for i in _with_role(source, *_ON_SERVERS)}
    effects = [
        name
        for name in source.step.control_outputs
        if name not in update and not on_servers & {handle for handle, _ in graph.writes(graph.nodes[name])}
    ]
    computed = graph.ancestors([*(edge[0] for edge in results), *effects])
    return find_tables(source, Graph(graph.part(computed)), results)


def _with_role(source: program_pb2.StepProgram, *roles: "program_pb2.Role") -> list[int]:
    return [i for i, variable in enumerate(source.variables) if variable.role in roles]


def _large_tables(source: program_pb2.StepProgram) -> list[int]:
    """Returns the variables with sparse gradients alone that have `LEAST_BYTES` or more."""
    sparse: dict[int, bool] = {}
    for hole in source.holes:
        for gradient in hole.gradients:
            sparse[gradient.variable] = sparse.get(gradient.variable, True) and gradient.sparse
    return [i for i, is_sparse in sparse.items() if is_sparse and table_bytes(source, i) >= LEAST_BYTES]


def table_bytes(source: program_pb2.StepProgram, variable: int) -> int:
    """Returns how many bytes a variable has."""
    spec = source.variables[variable].tensor
    return math.prod(spec.shape) * dtype_of(spec).itemsize


class _Finder:
    def __init__(self, source: program_pb2.StepProgram, graph: Graph, results: set[Tensor]):
        self._source, self._graph, self._results = source, graph, results
        self._users: dict[Tensor, list[tuple[Any, int]]] = {}
        for node in graph.nodes.values():
            for position, edge in enumerate(data_inputs(node)):
                self._users.setdefault(edge, []).append((node, position))
        self._unknown = {source.step.variables[i] for i in _with_role(source, *_ON_SERVERS)}

    def find(self) -> dict[int, ByRows | Whole]:
        names = self._source.step.variables
        return {i: self._verdict(i) for i in _large_tables(self._source) if names[i] in self._graph.nodes}

    def _verdict(self, variable: int) -> ByRows | Whole:
        lookups, shapes = list[Lookup](), list[str]()
        waiting: list[Tensor] = [(self._source.step.variables[variable], 0)]
        while waiting:
            edge = waiting.pop()
            if edge in self._results:
                return Whole("the step returns all of it")
            for node, position in self._users.get(edge, ()):
                if node.op in PASSING:
                    waiting.append((node.name, position))
                elif node.op == "ReadVariableOp":
                    waiting.append((node.name, 0))
                elif node.op in _SHAPES:
                    shapes.append(node.name)
                elif self._is_lookup(node, position):
                    lookups.append(Lookup(node.name, data_inputs(node)[1]))
                else:
                    return Whole(f"{node.op} uses all of it")
        reason = self._hindrance(lookups, shapes)
        return ByRows(tuple(lookups), tuple(shapes)) if reason is None else Whole(reason)

    def _is_lookup(self, node: Any, position: int) -> bool:
        if node.op not in _LOOKUPS or position or ("batch_dims" in node.attr and node.attr["batch_dims"].i):
            return False
        if node.op != "GatherV2":
            return True
        axis = self._graph.nodes[self._graph.source(data_inputs(node)[2])[0]]
        return axis.op == "Const" and not tf.make_ndarray(axis.attr["value"].tensor)

    def _hindrance(self, lookups: Sequence[Lookup], shapes: Sequence[str]) -> str | None:
        """Returns why the row numbers cannot be computed before the rest of the step; None if they can."""
        if not lookups:
            return "nothing looks its rows up"
        before = self._graph.waited_for((lookup.row_numbers[0] for lookup in lookups), stop=shapes)
        if before & self._unknown:
            return "its row numbers depend on parameters"
        shared = {
            (name, place)
            for node in self._graph.nodes.values()
            if node.name not in before
            for name, place in data_inputs(node)
            if name in before and self._graph.nodes[name].op not in COPIED
        }
        opaque = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)
        if any(self._graph.dtype(edge) in opaque for edge in shared):
            return "its row numbers are computed with a list or a resource that other operations use too"
        return None
