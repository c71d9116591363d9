"""In which order a step's operations are gone through."""

import collections
import heapq
from typing import Any

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
