"""Answers what a traced step writes, and what that depends on, from its graph."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Parts of the names of operations that draw random numbers.
_DRAWS = (
    "Random",
    "RngReadAndSkip",
    "TruncatedNormal",
    "Multinomial",
    "CandidateSampler",
    "SampleDistortedBoundingBox",
)
# Random operations that draw from a seed, and count internally what they have drawn.
_COUNTING = {
    *("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal"),
    *("RandomGamma", "RandomPoissonV2", "RandomShuffle", "Multinomial"),
}
# Operations whose first input chooses the function that gets the others.
_BRANCHING = ("If", "StatelessIf", "Case", "StatelessCase")
READERS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


def written(graph: Any, variables: Sequence[tf.Variable]) -> set[int]:
    """Returns the ids of the variables that a step may write: operations other than reads use them."""
    handles = {internal.name: external for external, internal in graph.captures}
    by_handle = {id(variable.handle): id(variable) for variable in variables}
    touched = (t.name for o in graph.get_operations() if o.type not in READERS for t in o.inputs if t.name in handles)
    return {by_handle[id(handles[name])] for name in touched if id(handles[name]) in by_handle}


def reads(graph: Any, tensor: tf.Tensor, variables: Sequence[tf.Variable]) -> bool:
    """Returns whether a tensor of a step's graph is computed from one of these variables, which the step captures."""
    names = {id(external): internal.op.name for external, internal in graph.captures}
    return not behind(tensor.op).isdisjoint(names[id(variable.handle)] for variable in variables)


def changed(graph: Any, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Returns the variables that a step may write; functions, loops and branches that it gives them to may only read them.

    Args:
        graph: FuncGraph of step(share, *batch).
        variables: The step's variables.
    """
    definition = graph.as_graph_def()
    library = {function.signature.name: function for function in definition.library.function}
    names = {id(external): internal.op.name for external, internal in graph.captures}
    return [v for v in variables if _may_write(definition.node, names[id(v.handle)], library)]


def _may_write(nodes: Sequence[Any], handle: str, library: Mapping[str, Any]) -> bool:
    """Whether nodes, or functions that they call, may write the variable whose handle is the output of this name."""
    for node in nodes:
        places = [i for i, name in enumerate(node.input) if name.split(":")[0] == handle]
        if not places or node.op in READERS:
            continue
        if node.op == "Identity":
            if _may_write(nodes, node.name, library):
                return True
            continue
        called = _called(node)
        # Branches are not given the first input, which chooses among them.
        first = 1 if node.op in _BRANCHING else 0
        if not called or any(_function_writes(library, name, i - first) for name in called for i in places):
            return True
    return False


def _function_writes(library: Mapping[str, Any], name: str, argument: int) -> bool:
    function = library.get(name)
    if function is None:
        return True
    return _may_write(function.node_def, function.signature.input_arg[argument].name, library)


def _called(node: Any) -> list[str]:
    """Returns the names of the functions that a node calls."""
    attributes = node.attr.values()
    single = [attribute.func.name for attribute in attributes if attribute.WhichOneof("value") == "func"]
    return [*single, *(function.name for attribute in attributes for function in attribute.list.func)]


class Writes:
    """The writes of a traced step to one variable; false if there are none.

    Attributes:
        are_random_states: Whether the variable is the state of a generator.
        follow_inputs: Whether the writes depend on the batch, or on random numbers.
        follow_holes: Whether the writes depend on gradients that come out of a hole.
        reads: Ids of the handles of variables that the writes depend on.
    """

    def __init__(self, graph: Any, variable: tf.Variable, holes: set[str]):
        """Follows the writes back by data.

        Args:
            graph: FuncGraph of step(share, *batch).
            variable: A variable that it captures.
            holes: Names of the functions that mark holes.
        """
        handles = {internal.name for external, internal in graph.captures if external is variable.handle}
        users = [o for o in graph.get_operations() if any(t.name in handles for t in o.inputs)]
        waiting = [o for o in users if o.type not in READERS]
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
            # Each worker draws random numbers of its own.
            self.follow_inputs |= draws(operation.type)
            waiting += [t.op for t in operation.inputs]

    def __bool__(self) -> bool:
        return self._writes


def written_before(graph: Any, holes: Mapping[str, Collection[int]]) -> Any | None:
    """Returns the handle of a variable that a step writes before it computes a gradient by it, at its new value.

    Gradients by other variables may use an older value of it, as a generator's do of its critic: that is an ordinary delay.

    Args:
        graph: FuncGraph of step(share, *batch).
        holes: By name of each function that marks a hole, the ids of the handles of the variables of its gradients.

    Returns:
        The handle; None if there is none.
    """
    handles = {internal.name: external for external, internal in graph.captures}
    library = {function.signature.name: function for function in graph.as_graph_def().library.function}
    for mark in graph.get_operations():
        if "Call" not in mark.type or mark.get_attr("f").name not in holes:
            continue
        by = {name for name, handle in handles.items() if id(handle) in holes[mark.get_attr("f").name]}
        # The hole of a learning rate has no gradients.
        for operation in map(graph.get_operation_by_name, behind(mark) if by else ()):
            for name in by & {tensor.name for tensor in operation.inputs}:
                # TensorFlow has whatever reads a variable wait for the last write before it.
                if any(_writes(before, name, library) for before in operation.control_inputs):
                    return handles[name]
    return None


def _writes(operation: Any, handle: str, library: Mapping[str, Any]) -> bool:
    """Whether an operation writes the variable whose handle is the tensor of this name."""
    is_given = any(tensor.name == handle for tensor in operation.inputs)
    return is_given and _may_write([operation.node_def], handle.removesuffix(":0"), library)


def behind(operation: Any) -> set[str]:
    """Returns the names of an operation and of all those that it depends on by data."""
    waiting, seen = [operation], set[str]()
    while waiting:
        found = waiting.pop()
        if found.name not in seen:
            seen.add(found.name)
            waiting += [t.op for t in found.inputs]
    return seen


def draws(operation_type: str) -> bool:
    """Returns whether operations of a type draw random numbers."""
    return any(name in operation_type for name in _DRAWS)


def is_random(graph: Any) -> bool:
    """Returns whether a traced step draws random numbers, directly or in a function, loop or branch."""
    return any(map(draws, _kinds(graph)))


def counting_draws(graph: Any) -> list[str]:
    """Returns the types of a traced step's random operations that count internally, not in a variable, what they have drawn."""
    return sorted(_COUNTING.intersection(_kinds(graph)))


def draws_of_its_own(graph: Any) -> list[str]:
    """Returns the types of random operations with a seed that stand in an eager step itself and draw other numbers there.

    In plain python they begin at a seed of TensorFlow's context in each step, or count on where others of their kind stand.
    """
    found = (op for op in graph.get_operations() if op.type in _COUNTING)
    return sorted({op.type for op in found if op.get_attr("seed") or op.get_attr("seed2")})


def _kinds(graph: Any) -> Iterator[str]:
    """Yields the types of a step's operations, and of those in its functions, loops and branches."""
    yield from (operation.type for operation in graph.get_operations())
    yield from (node.op for function in graph.as_graph_def().library.function for node in function.node_def)
