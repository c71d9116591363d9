"""What a traced step writes, and what that stands on: questions to its graph."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# In the names of operations that draw random numbers.
_DRAWS = (
    "Random",
    "RngReadAndSkip",
    "TruncatedNormal",
    "Multinomial",
    "CandidateSampler",
    "SampleDistortedBoundingBox",
)
_READERS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


def written(graph: Any, variables: Sequence[tf.Variable]) -> set[int]:
    """Returns the identities of the variables of which a step does more than read them."""
    handles = {internal.name: external for external, internal in graph.captures}
    by_handle = {id(variable.handle): id(variable) for variable in variables}
    touched = (t.name for o in graph.get_operations() if o.type not in _READERS for t in o.inputs if t.name in handles)
    return {by_handle[id(handles[name])] for name in touched if id(handles[name]) in by_handle}


class Writes:
    """What a variable is overwritten with in a traced step; false if it is not.

    Attributes:
        are_random_states: Whether it is the state of a generator.
        follow_inputs: Whether they stand on the batch, or on random numbers.
        follow_holes: Whether they stand on gradients as they come out of a hole.
        reads: Ids of the variables' handles that they stand on.
    """

    def __init__(self, graph: Any, variable: tf.Variable, holes: set[str]):
        """Follows the writes back by data.

        Args:
            graph: FuncGraph of step(share, *batch).
            variable: One that it captures.
            holes: Names of the functions that mark holes.
        """
        handles = {internal.name for external, internal in graph.captures if external is variable.handle}
        users = [o for o in graph.get_operations() if any(t.name in handles for t in o.inputs)]
        waiting = [o for o in users if o.type not in _READERS]
        self._writes = bool(waiting)
        self.are_random_states = any("RngReadAndSkip" in o.type for o in users)
        inputs = {t.op.name for t in graph.inputs[: len(graph.inputs) - len(graph.captures)]}
        self.follow_holes = self.follow_inputs = False
        self.reads: set[int] = set()
        externals = {internal.op.name: id(external) for external, internal in graph.captures}
        seen: set[str] = set()
        while waiting:
            operation = waiting.pop()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            if operation.name in externals:
                self.reads.add(externals[operation.name])
            self.follow_inputs |= operation.name in inputs
            if "Call" in operation.type and operation.get_attr("f").name in holes:
                self.follow_holes = True
                continue
            # A random number is every worker's own.
            self.follow_inputs |= draws(operation.type)
            waiting += [t.op for t in operation.inputs]

    def __bool__(self) -> bool:
        return self._writes


def stands_on_no(inputs: set[str], graph: Any, variable: tf.Variable) -> bool:
    """Returns whether a variable is written, and nothing that is written stands on one of these inputs."""
    handles = {internal.name for external, internal in graph.captures if external is variable.handle}
    waiting = [
        operation
        for operation in graph.get_operations()
        if "Assign" in operation.type and operation.inputs[0].name in handles
    ]
    written, seen = bool(waiting), set()
    while waiting:
        operation = waiting.pop()
        if operation.name in inputs:
            return False
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [*(t.op for t in operation.inputs), *operation.control_inputs]
    return written


def draws(operation_type: str) -> bool:
    """Returns whether operations of a type draw random numbers."""
    return any(name in operation_type for name in _DRAWS)


def is_random(graph: Any) -> bool:
    """Returns whether a traced step draws random numbers, be it in a function, loop or branch."""
    library = graph.as_graph_def().library
    inside = (node.op for function in library.function for node in function.node_def)
    return any(map(draws, inside)) or any(draws(operation.type) for operation in graph.get_operations())
