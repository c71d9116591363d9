"""Divides a computation that looks rows of tables up into two stages: row numbers first, then the rest with these rows.

Between the stages the rows are fetched from the parameter servers (`nfdt.row_transfer`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.node_graph import Graph, Tensor, control_inputs, data_inputs, placeholder, tensor
from fdt.program.table_lookups import COPIED, ByRows, find_tables
from fdt.program.update.cut import Cut
from fdt.v1 import program_pb2


@dataclasses.dataclass(frozen=True)
class LookedUp:
    """A table of which a worker gets rows.

    Attributes:
        variable: Its index.
        row_numbers: Tensors of the first stage: the rows that each of its lookups asks for.
        rows: The placeholder of the second stage that receives rows, [number, ...].
        places: For each lookup, the placeholder for the places of its rows among these; of the shape and type of its row
            numbers.
    """

    variable: int
    row_numbers: tuple[Tensor, ...]
    rows: str
    places: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Stages:
    """A computation's two stages.

    Attributes:
        tables: The tables of which a worker gets rows. Without any, the first stage is empty and the second is the computation.
        first: GraphDef; reads no parameter and no optimizer variable.
        first_effects: Operations of the first stage that must have run.
        crossing: From other tensors of the first stage to the placeholders of the second that receive them.
        second: GraphDef.
        second_effects: Operations of the second stage that must have run.
    """

    tables: tuple[LookedUp, ...]
    first: Any
    first_effects: tuple[str, ...]
    crossing: Mapping[Tensor, str]
    second: Any
    second_effects: tuple[str, ...]

    def in_second(self, edge: Tensor) -> Tensor:
        """Returns the second stage's tensor for a tensor of the computation."""
        return (self.crossing[edge], 0) if edge in self.crossing else edge


def divide(source: program_pb2.StepProgram, cut: Cut) -> Stages:
    """Divides a program's computation.

    Args:
        source: The program.
        cut: Its two parts.
    """
    results = [tensor(name) for name in source.step.outputs]
    results += [edge for gradient in cut.gradients for edge in gradient.computed]
    results += [extra.computed for extra in cut.extras]
    graph = Graph(cut.compute)
    found = {i: verdict for i, verdict in find_tables(source, graph, results).items() if isinstance(verdict, ByRows)}
    if not found:
        return Stages((), None, (), {}, cut.compute, cut.compute_effects)
    replaced = type(cut.compute).FromString(cut.compute.SerializeToString())
    tables = tuple(_replace(replaced, graph, source, variable, verdict) for variable, verdict in found.items())
    return _divided(Graph(replaced), tables, results, cut.compute_effects)


def _divided(graph: Graph, tables: tuple[LookedUp, ...], results: Sequence[Tensor], effects: Sequence[str]) -> Stages:
    first = graph.waited_for(edge[0] for table in tables for edge in table.row_numbers)
    own = {name for name in first if graph.nodes[name].op not in COPIED}
    second_effects = [name for name in effects if name not in own]
    reached = graph.ancestors([*(edge[0] for edge in results), *second_effects], stop=own)
    second = reached - own
    crossing = {edge for name in second for edge in data_inputs(graph.nodes[name]) if edge[0] in own}
    crossing |= {edge for edge in results if edge[0] in own}
    named = {edge: f"fdt_crossing_{number}" for number, edge in enumerate(sorted(crossing))}
    part = graph.part(second, {edge: (name, 0) for edge, name in named.items()})
    part.node.extend(placeholder(name, graph.dtype(edge)) for edge, name in named.items())
    first_effects = tuple(name for name in effects if name in own)
    return Stages(tables, graph.part(first), first_effects, named, part, tuple(second_effects))


def _replace(graph_def: Any, graph: Graph, source: program_pb2.StepProgram, variable: int, by_rows: ByRows) -> LookedUp:
    """Makes a table's lookups read received rows, and makes its shape a constant.

    Args:
        graph_def: GraphDef of the computation, changed in place.
        graph: The same, unchanged.
        source: The program.
        variable: The table.
        by_rows: How it is used.
    """
    spec, nodes = source.variables[variable].tensor, {node.name: node for node in graph_def.node}
    dtype, rows = tf.dtypes.as_dtype(spec.dtype).as_datatype_enum, f"fdt_rows_{variable}"
    graph_def.node.append(placeholder(rows, dtype))
    places = []
    for number, lookup in enumerate(by_rows.lookups):
        place, axis = f"fdt_places_{variable}_{number}", f"fdt_axis_{variable}_{number}"
        of_numbers = graph.dtype(lookup.row_numbers)
        graph_def.node.append(placeholder(place, of_numbers))
        _make_constant(graph_def.node.add(name=axis), 0, tf.int32.as_datatype_enum)
        _make_gather(nodes[lookup.node], [rows, place, axis], dtype, of_numbers)
        places.append(place)
    for name in by_rows.shapes:
        given = nodes[name].attr["out_type"].type if "out_type" in nodes[name].attr else tf.int32.as_datatype_enum
        _make_constant(nodes[name], list(spec.shape), given)
    return LookedUp(variable, tuple(lookup.row_numbers for lookup in by_rows.lookups), rows, tuple(places))


def _make_gather(node: Any, inputs: Sequence[str], dtype: int, of_numbers: int) -> None:
    waits = [f"^{name}" for name in control_inputs(node)]
    node.op = "GatherV2"
    del node.input[:]
    node.input.extend([*inputs, *waits])
    node.attr.clear()
    node.attr["Tparams"].type, node.attr["Tindices"].type = dtype, of_numbers
    node.attr["Taxis"].type = tf.int32.as_datatype_enum


def _make_constant(node: Any, value: Any, dtype: int) -> None:
    node.op = "Const"
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = dtype
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.dtypes.as_dtype(dtype)))
