"""Splits an update: operations on whole tensors come first, the elementwise rest is compiled.

Keras's Adam on a table's rows is an example: it first sums the values into one gradient for every row, and then computes with
tensors of fixed shapes. Clipping by a norm is another.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.node_graph import PASSING, Graph, Tensor, data_inputs, placeholder
from fdt.program.update.elementwise import ELEMENTWISE
from fdt.program.update.parameter_groups import VARIABLES

_LEAVES = {"Const", "Placeholder"}


@dataclasses.dataclass(frozen=True)
class UpdateSplit:
    """An update in two parts.

    Attributes:
        before: GraphDef of the first part. It writes nothing, and reads no variable that the update writes.
        crossing: From tensors of `before` to the placeholders of `after` that receive them.
        after: GraphDef of the second part: elementwise operations, reads and writes of variables.
    """

    before: Any
    crossing: dict[Tensor, str]
    after: Any


def find_frontier(
    graph: Graph, writers: Sequence[str], inputs: Mapping[str, tf.TensorSpec], rates: Collection[str]
) -> UpdateSplit | None:
    """Splits a part of an update; returns None if that is not possible.

    Args:
        graph: The graph of the whole update.
        writers: The operations to run.
        inputs: The placeholders of gradients and extras, and their specs.
        rates: Names of the functions that stand for the hole of a learning rate.
    """
    nodes = graph.ancestors(writers)
    whole = {n for n in nodes if not _is_elementwise(graph.nodes[n], rates)}
    before = graph.ancestors(whole)
    # A read of a written variable may have to wait for the write, which is in the other part.
    written = {handle for n in writers for handle, _ in graph.writes(graph.nodes[n])}
    if before & written or any(graph.has_effect(graph.nodes[n]) for n in before):
        return None
    rest = nodes - before
    edges = {edge for n in rest for edge in data_inputs(graph.nodes[n])}
    leaves = {name for name, _ in edges if graph.nodes[name].op in _LEAVES}
    if any(n in inputs and not inputs[n].shape.is_fully_defined() for n in leaves):
        return None
    crossed = sorted(edge for edge in edges if edge[0] in before - leaves)
    crossing = {edge: f"fdt_crossing_{i}" for i, edge in enumerate(crossed)}
    after = graph.part(rest | leaves, {edge: (name, 0) for edge, name in crossing.items()})
    after.node.extend(placeholder(name, graph.dtype(edge)) for edge, name in crossing.items())
    return UpdateSplit(graph.part(before), crossing, after)


def _is_elementwise(node: Any, rates: Collection[str]) -> bool:
    if node.op == "PartitionedCall":
        return node.attr["f"].func.name in rates
    return node.op in ELEMENTWISE | VARIABLES | PASSING | _LEAVES
