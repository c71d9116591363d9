"""A step's graph: in which order its operations are gone through, and the functions that they name."""

import collections
import heapq
from collections.abc import Iterator
from typing import Any

from tensorflow.python.framework import function_def_to_graph

# Stateful for TensorFlow, and without effect.
LOOKING = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
        "Placeholder",
    }
)


def in_order(graph: Any) -> list[Any]:
    """Returns the operations of a function that are run, each after those it needs, else as they were made.

    As they were made is not enough: the gradient of a loop gives the loop further inputs.
    """
    operations = _run(graph)
    place = {op.name: i for i, op in enumerate(operations)}
    waiting = {
        op.name: len({*(t.op.name for t in op.inputs), *(c.name for c in op.control_inputs)}) for op in operations
    }
    users = collections.defaultdict(list)
    for op in operations:
        for name in {*(t.op.name for t in op.inputs), *(c.name for c in op.control_inputs)}:
            users[name].append(op.name)
    ready = [i for i, op in enumerate(operations) if not waiting[op.name]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        op = operations[heapq.heappop(ready)]
        ordered.append(op)
        for name in users[op.name]:
            waiting[name] -= 1
            if not waiting[name]:
                heapq.heappush(ready, place[name])
    return ordered


def _run(graph: Any) -> list[Any]:
    """Returns what a function runs: what its outputs need, and what does something besides giving its outputs."""
    everything = graph.get_operations()
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    waiting += [op for op in everything if op.type not in LOOKING and op._is_stateful]
    needed = {tensor.op.name for tensor in graph.inputs}
    while waiting:
        op = waiting.pop()
        if op.name not in needed:
            needed.add(op.name)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return [op for op in everything if op.name in needed]


def graphs_around(graph: Any) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def function_graph(around: Any, name: str) -> Any:
    """Returns the FuncGraph of a function that a graph, or one around it, knows."""
    owner = next(graph for graph in graphs_around(around) if graph._get_function(name) is not None)
    function = owner._get_function(name)
    graph = getattr(function, "graph", None)
    if graph is not None:
        return graph
    definition = getattr(function, "cached_definition", None) or function.definition
    # Whose functions it may call.
    with owner.as_default():
        return function_def_to_graph.function_def_to_graph(definition)


def is_call(op: Any) -> bool:
    """Whether an operation calls a function, and does nothing else."""
    return op.type in ("PartitionedCall", "StatefulPartitionedCall")


def writes(op: Any) -> bool:
    """Whether an operation does something besides giving its outputs."""
    return bool(op._is_stateful) and op.type not in LOOKING and not is_call(op)


def names_functions(attribute: Any) -> bool:
    return attribute.HasField("func") or bool(attribute.list.func)


def called(op: Any) -> list[Any]:
    """Returns the FuncGraphs of all functions that an operation names."""
    attributes = op.node_def.attr.values()
    named = [
        function for value in attributes for function in ([value.func] if value.HasField("func") else value.list.func)
    ]
    return [function_graph(op.graph, function.name) for function in named]
