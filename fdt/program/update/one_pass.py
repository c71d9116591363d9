"""Rewrites a step so that one operation updates a parameter together with what its optimizer keeps of it.

Where the update of a parameter is a formula for each of its entries that was compiled with this package, `FdtUpdateVariables`
takes the place of the operations that write the parameter and the optimizer's variables: it reads and writes each of them once.
All other updates stay as they were traced.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import op_def_registry

from fdt.base.native import optional
from fdt.errors import UnsupportedError
from fdt.program.node_graph import Graph, Tensor, control_inputs, data_inputs, tensor, text_of
from fdt.program.update.cut import Cut, Gradient, cut
from fdt.program.update.formula import formula
from fdt.program.update.parameter_groups import VARIABLES, ParameterGroup, find_units
from fdt.program.update.pure import Pure, purify
from fdt.program.update.update_split import UpdateSplit, find_frontier
from fdt.v1 import program_pb2

OPERATION, OF_TABLES = "FdtUpdateVariables", "FdtUpdateTableVariables"
_SUM = "UnsortedSegmentSum"
# Compiled, or found, before a worker's sandbox is closed.
_NATIVE = optional("fdt.program.update")
# The types for which formulas are compiled.
_TYPES = ("float32", "float64")
# More than one has are not tried in all orders.
_MOST_SLOTS = 3


def in_one_pass(
    source: program_pb2.StepProgram, exact: bool = False, table_bytes: int | None = None
) -> program_pb2.StepProgram:
    """Returns a program whose parameters are updated by `FdtUpdateVariables` where that is possible; others are unchanged.

    Args:
        source: The program.
        exact: Whether only formulas are taken that give TensorFlow's bits: others may differ in the last one.
        table_bytes: From what size on a table is updated by `FdtUpdateTableVariables`, which gets the rows of a sparse gradient
            and not their sums, as large as the table; None for no table.
    """
    if _NATIVE is None:
        return source
    try:
        parts = cut(source)
    except UnsupportedError:
        return source
    meta_graph = tf.compat.v1.MetaGraphDef.FromString(source.step.meta_graph)
    finder = _Finder(source, parts, Graph(meta_graph.graph_def), exact, table_bytes)
    found = [update for unit in find_units(source, parts).units for update in finder.updates(unit)]
    if not found:
        return source
    rewritten = program_pb2.StepProgram()
    rewritten.CopyFrom(source)
    step = rewritten.step
    replaced = {writer: update.name for update in found for writer in update.writers}
    step.control_outputs[:] = dict.fromkeys(replaced.get(name, name) for name in step.control_outputs)
    graph = _replaced(finder.graph, found, [*step.control_outputs, *(tensor(name)[0] for name in step.outputs)])
    if graph is None:
        return source
    kept = {*step.inputs, *step.variables, *step.tables}
    there = {node.name for node in graph.node}
    # The step's inputs stay, whether anything reads them or not.
    graph.node.extend(node for node in meta_graph.graph_def.node if node.name in kept - there)
    meta_graph.graph_def.CopyFrom(graph)
    used = {update.operation for update in found}
    meta_graph.meta_info_def.stripped_op_list.op.extend(op_def_registry.get(name) for name in sorted(used))
    step.meta_graph = meta_graph.SerializeToString(deterministic=True)
    return rewritten


@dataclasses.dataclass(frozen=True)
class _Update:
    """An update of one parameter.

    Attributes:
        name: The new operation's.
        formula: Its compiled formula.
        gradients: What the formula takes as gradients; tensors of the step, as `scalars`.
        variables: The placeholders of the variables, the parameter first.
        writers: The operations that it replaces.
        dtype: The number of the variables' type.
        indices: Of a table, the row to which each of the gradients' rows belongs.
    """

    name: str
    formula: str
    gradients: Sequence[Tensor]
    scalars: Sequence[Tensor]
    variables: Sequence[str]
    writers: Sequence[str]
    dtype: int
    indices: Tensor | None = None
    index_dtype: int = 0

    @property
    def operation(self) -> str:
        """The new operation's type."""
        return OPERATION if self.indices is None else OF_TABLES

    def node(self, controls: Iterable[str]) -> Any:
        """Returns the operation, which waits for others."""
        made = node_def_pb2.NodeDef(name=self.name, op=self.operation)
        indices = [] if self.indices is None else [self.indices]
        made.input.extend(text_of(edge) for edge in (*self.gradients, *indices, *self.scalars))
        made.input.extend((*self.variables, *(f"^{name}" for name in sorted(controls))))
        made.attr["formula"].s = self.formula.encode()
        for name, number in (("N", self.gradients), ("K", self.scalars), ("V", self.variables)):
            made.attr[name].i = len(number)
        made.attr["T"].type = self.dtype
        if self.indices is not None:
            made.attr["Index"].type = self.index_dtype
        return made


class _Finder:
    """Finds the updates of a program that have a compiled formula."""

    def __init__(
        self, source: program_pb2.StepProgram, parts: Cut, graph: Graph, exact: bool, table_bytes: int | None
    ) -> None:
        self.graph, self._exact, self._table_bytes = graph, exact, table_bytes
        self._source, self._parts, self._update = source, parts, Graph(parts.update)
        self._places = {name: i for i, name in enumerate(source.step.variables)}
        self._rates = {h.function for h in source.holes if h.kind == program_pb2.Hole.KIND_RATE}
        # What stands in the update for tensors of the step.
        self._step_edges: dict[Tensor, Tensor] = {}
        self._inputs: dict[str, tf.TensorSpec] = {}
        for gradient in parts.gradients:
            self._step_edges |= zip(((name, 0) for name in gradient.received), gradient.given, strict=True)
            shape = None if gradient.sparse else source.variables[gradient.variable].tensor.shape
            self._inputs |= {name: tf.TensorSpec(shape) for name in gradient.received}
        self._step_edges |= {(extra.received, 0): extra.computed for extra in parts.extras}
        self._inputs |= {extra.received: tf.TensorSpec(None) for extra in parts.extras}

    def updates(self, unit: ParameterGroup) -> Iterator[_Update]:
        """Yields the updates of a group's parameters that are formulas."""
        # What writes in a branch stays.
        writers = [w for w in unit.writers if self._update.nodes[w].op in VARIABLES]
        for place in unit.gradients:
            gradient = self._parts.gradients[place]
            found = self._found(gradient, self._writers_of(gradient, writers))
            if found is not None:
                yield found

    def _writers_of(self, gradient: Gradient, writers: Sequence[str]) -> list[str]:
        """Returns the writers of a gradient's parameter and of what its update reads: not of moving averages of it."""
        parameter = self._source.step.variables[gradient.variable]
        needed, number = {parameter}, 0
        while number != len(needed):
            number = len(needed)
            found = [w for w in writers if needed.intersection(self._written(w))]
            needed |= self._update.ancestors(found).intersection(h for w in writers for h in self._written(w))
        return found

    def _written(self, writer: str) -> list[str]:
        return [handle for handle, _ in self._update.writes(self._update.nodes[writer])]

    def _found(self, gradient: Gradient, writers: Sequence[str]) -> _Update | None:
        parameter = self._source.variables[gradient.variable].tensor
        name = self._source.step.variables[gradient.variable]
        written = list(dict.fromkeys(handle for w in writers for handle in self._written(w)))
        alike = all(self._described(handle) == (parameter.dtype, list(parameter.shape)) for handle in written)
        if name not in written or not alike or parameter.dtype not in _TYPES:
            return None
        split = find_frontier(self._update, writers, self._inputs, self._rates)
        if split is None:
            return None
        types = {node.name: self._types[node.name] for node in split.after.node if node.name in self._types}
        pure = purify(split.after, types)
        if set(pure.results) != set(written):
            # It writes a variable that is not of this parameter alone.
            return None
        slots = [handle for handle in written if handle != name]
        orders = itertools.permutations(slots) if len(slots) <= _MOST_SLOTS else [tuple(slots)]
        for order in orders:
            made = self._made(gradient, split, pure, [name, *order], writers)
            if made is not None:
                return made
        return None

    def _described(self, handle: str) -> tuple[str, list[int]]:
        described = self._source.variables[self._places[handle]].tensor
        return described.dtype, list(described.shape)

    @functools.cached_property
    def _types(self) -> dict[str, int]:
        variables = self._source.variables
        return {n: tf.as_dtype(variables[i].tensor.dtype).as_datatype_enum for n, i in self._places.items()}

    def _made(
        self, gradient: Gradient, split: UpdateSplit, pure: Pure, variables: Sequence[str], writers: Sequence[str]
    ) -> _Update | None:
        values, results = [pure.values[name] for name in variables], [pure.results[name] for name in variables]
        graph = Graph(pure.graph_def)
        # A sparse gradient is a sum by rows here, which the first part of the update computes.
        sums = [name for edge, name in split.crossing.items() if self._update.nodes[edge[0]].op == _SUM]
        tried = [sums] if gradient.sparse else [[name] for name in _passed(graph, *gradient.received)]
        each = (formula(graph, names, values, results) for names in tried)
        written = next((found for found in each if found is not None and found.name is not None), None)
        if written is None or (self._exact and not written.is_exact):
            return None
        crossed = {(name, 0): edge for edge, name in split.crossing.items()}
        gradients = [self._in_step((name, 0), pure, crossed) for name in written.gradients]
        scalars = [self._in_step(edge, pure, crossed) for edge in written.scalars]
        dtype, shape = self._described(variables[0])
        number = tf.as_dtype(dtype).as_datatype_enum
        if not all(self._fits(edge, number, shape) for edge in gradients):
            return None
        if not all(self._fits(edge, number, []) for edge in scalars):
            return None
        name = f"fdt_update_{gradient.variable}"
        made = _Update(name, written.name, gradients, scalars, variables, writers, number)  # type: ignore[arg-type]
        size = math.prod(shape) * tf.as_dtype(dtype).size
        by_rows = gradient.sparse and self._table_bytes is not None and size >= self._table_bytes
        return self._by_rows(made) if by_rows else made

    def _by_rows(self, update: _Update) -> _Update:
        """Returns an update with the rows of gradients in the place of their sums, if these have the same row numbers."""
        inputs = [data_inputs(self.graph.nodes[name]) for name, _ in update.gradients]
        indices = {self.graph.value(edges[1]) for edges in inputs}
        if len(indices) != 1 or any(self.graph.nodes[name].op != _SUM for name, _ in update.gradients):
            return update
        (rows,) = indices
        gradients = [edges[0] for edges in inputs]
        return dataclasses.replace(update, gradients=gradients, indices=rows, index_dtype=self.graph.dtype(rows))

    def _in_step(self, edge: Tensor, pure: Pure, crossed: dict[Tensor, Tensor]) -> Tensor | None:
        """Returns the step's tensor for one of the update's; None if the step has none."""
        edge = crossed.get(edge, edge)
        if edge in self._step_edges:
            return self._step_edges[edge]
        # A variable's value is what one of the step's operations has read.
        edge = pure.read.get(edge, edge)
        node = self.graph.nodes.get(edge[0])
        return None if node is None or node.op.startswith("Assign") else edge

    def _fits(self, edge: Tensor | None, dtype: int, shape: Sequence[int]) -> bool:
        """Whether a tensor of the step has a type and a shape, as it was traced."""
        if edge is None or self.graph.dtype(edge) != dtype:
            return False
        traced = self.graph.nodes[edge[0]].attr["_output_shapes"].list.shape
        if self.graph.nodes[edge[0]].op == "Const":
            found = self.graph.nodes[edge[0]].attr["value"].tensor.tensor_shape
        elif edge[1] < len(traced):
            found = traced[edge[1]]
        else:
            return False
        return not found.unknown_rank and [dim.size for dim in found.dim] == list(shape)


def _passed(graph: Graph, gradient: str) -> Iterator[str]:
    """Yields the nodes that a gradient passes, one after the other, before the optimizer gets it: where it is clipped."""
    users: dict[str, set[str]] = {}
    for node in graph.nodes.values():
        for name, _ in data_inputs(node):
            users.setdefault(name, set()).add(node.name)
    while True:
        yield gradient
        if len(users.get(gradient, ())) != 1:
            return
        (gradient,) = users[gradient]


def _replaced(graph: Graph, updates: Sequence[_Update], wanted: Sequence[str]) -> Any | None:
    """Returns the graph with updates in place of the operations that they replace; operations without readers are removed.

    Returns:
        GraphDef; None if an update would have to wait for itself.
    """
    replaced = {writer: update.name for update in updates for writer in update.writers}
    nodes: dict[str, Any] = {}
    for name, node in graph.nodes.items():
        if name not in replaced:
            nodes[name] = node
    waits = {u.name: {c for w in u.writers for c in control_inputs(graph.nodes[w])} - set(u.writers) for u in updates}
    for update in updates:
        nodes[update.name] = update.node({replaced.get(name, name) for name in waits[update.name]} - {update.name})
    for name in list(nodes):
        if any(control in replaced for control in control_inputs(nodes[name])):
            copied = node_def_pb2.NodeDef()
            copied.CopyFrom(nodes[name])
            controls = dict.fromkeys(replaced.get(control, control) for control in control_inputs(copied))
            copied.input[:] = [*map(text_of, data_inputs(copied)), *(f"^{control}" for control in controls)]
            nodes[name] = copied
    return _needed(graph, nodes, [*wanted, *(update.name for update in updates)])


def _needed(graph: Graph, nodes: dict[str, Any], wanted: Collection[str]) -> Any | None:
    """Returns a GraphDef of the nodes that are needed, in topological order; None if there is a circle."""
    before = {n: [*(e[0] for e in data_inputs(node)), *control_inputs(node)] for n, node in nodes.items()}
    ordered: dict[str, None] = {}
    begun: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting[-1]
        if name in ordered:
            waiting.pop()
            continue
        unknown = [b for b in before[name] if b not in ordered]
        if not unknown:
            ordered[name] = None
            waiting.pop()
        elif name in begun:
            return None
        else:
            begun.add(name)
            waiting += unknown
    made = type(graph.graph_def)(versions=graph.graph_def.versions, library=graph.graph_def.library)
    made.node.extend(nodes[name] for name in nodes if name in ordered)
    return made
