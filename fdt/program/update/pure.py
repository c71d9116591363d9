"""Makes an update a function of values: its inputs are the variables that it reads, its outputs those that it writes.

Compiled code that writes variables itself copies them first. As a function of values it is one pass over memory, and assigning
a result to its variable costs nothing.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tensorflow.core.framework import graph_pb2

from fdt.program.node_graph import Graph, Tensor, control_inputs, data_inputs, placeholder, tensor, text_of


@dataclasses.dataclass(frozen=True)
class Pure:
    """An update without variables.

    Attributes:
        graph_def: A placeholder for each value.
        values: From the placeholder of a variable to that of its value.
        results: From the placeholder of each written variable to the tensor ("node:0") of its new value.
        read: From a variable's value, at some time, to an output of the operation that read it then.
    """

    graph_def: Any
    values: dict[str, str]
    results: dict[str, str]
    read: dict[Tensor, Tensor]


_WITH = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}


def purify(graph_def: Any, types: Mapping[str, int]) -> Pure:
    """Rewrites a graph of reads, writes and plain arithmetic.

    Args:
        graph_def: Has ReadVariableOp, AssignVariableOp, AssignAddVariableOp and AssignSubVariableOp on placeholders, and
            operations without effects.
        types: The number of a variable's type, by its placeholder.
    """
    graph = Graph(graph_def)
    result = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    values = {handle: f"{handle}/fdt_value" for handle in graph.nodes if handle in types}
    result.node.extend(placeholder(name, types[handle]) for handle, name in values.items())
    # Each variable's value after the nodes rewritten so far, as a node's input.
    current = dict(values)
    read: dict[tuple[str, int], str] = {}
    written: dict[str, str] = {}
    for name in _in_order(graph):
        node = graph.nodes[name]
        edges = data_inputs(node)
        inputs = [read.get(edge, text_of(edge)) for edge in edges]
        if node.op == "ReadVariableOp":
            read[name, 0] = current[edges[0][0]]
        elif node.op == "AssignVariableOp":
            current[edges[0][0]] = written[edges[0][0]] = inputs[1]
        elif node.op in _WITH:
            handle = edges[0][0]
            sum_node = result.node.add(name=name, op=_WITH[node.op], input=[current[handle], inputs[1]])
            sum_node.attr["T"].type = types[handle]
            current[handle] = written[handle] = name
        elif name not in values:
            copy = result.node.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(inputs)
    results = {handle: text if ":" in text else f"{text}:0" for handle, text in written.items()}
    return Pure(result, values, results, {tensor(text): edge for edge, text in read.items()})


def _in_order(graph: Graph) -> list[str]:
    """Returns the nodes in topological order: each after its data and control inputs."""
    ordered: dict[str, None] = {}
    waiting = list(reversed(graph.nodes))
    while waiting:
        name = waiting[-1]
        node = graph.nodes[name]
        before = [e[0] for e in data_inputs(node)] + control_inputs(node)
        unknown = [b for b in before if b not in ordered]
        if name in ordered or not unknown:
            ordered[name] = None
            waiting.pop()
        else:
            waiting += unknown
    return list(ordered)
