"""Tells which metrics may be summed over workers: those whose state is only ever added to."""

from collections.abc import Iterator, Mapping
from typing import Any

from fdt.errors import UnsupportedError

_ADDING = {"AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterAdd", "ResourceScatterSub"}
_PASSING = {"Identity", "Cast", "Reshape", "StopGradient"}
_ADDITIONS = {"AddV2", "Add", "Sub"}


def check_additive(graph: Any, metrics: Mapping[int, Any]) -> None:
    """Checks in the traced graph that every write to a metric's state is `state <- state + f(batch)`.

    The states of such a metric, one a worker, add up to the state of one machine, so its result over workers is exact.

    Args:
        graph: FuncGraph of the step.
        metrics: From id of a tf.Variable to the metric that owns it.

    Raises:
        UnsupportedError: A metric writes its state in another way; it is named.
    """
    by_handle = {id(v.handle): v for v in graph.variables}
    states = {
        internal.name: (by_handle[id(external)], metrics[id(by_handle[id(external)])])
        for external, internal in graph.captures
        if id(external) in by_handle and id(by_handle[id(external)]) in metrics
    }
    for handle, (variable, metric) in states.items():
        for operation in _users(graph, handle):
            if not _keeps_sum(operation, handle):
                raise UnsupportedError(
                    f"Asynchronous training on several workers cannot go on with this: the metric {metric.name!r} "
                    f"({type(metric).__name__}) changes its state {variable.name!r} by {operation.type}, not by adding to "
                    "it, so the states of several workers cannot be put together exactly. Expected: every state variable is "
                    "updated as state.assign_add(f(batch)), directly in update_state. Rewrite the metric that way, compute "
                    "it in a callback at the end of an epoch, or use --mode sync."
                )


def _users(graph: Any, handle: str) -> Iterator[Any]:
    for operation in graph.get_operations():
        if any(tensor.name == handle for tensor in operation.inputs) and operation.type != "ReadVariableOp":
            yield operation


def _keeps_sum(operation: Any, handle: str) -> bool:
    if operation.type in _ADDING:
        return not _depends(operation.inputs[1:], handle)
    if operation.type != "AssignVariableOp":
        return operation.type in ("VariableShape", "VarIsInitializedOp", "ResourceGather")
    addition = _through(operation.inputs[1])
    if addition.op.type not in _ADDITIONS:
        return False
    left, right = addition.op.inputs
    if _is_read(left, handle):
        return not _depends([right], handle)
    return addition.op.type != "Sub" and _is_read(right, handle) and not _depends([left], handle)


def _through(tensor: Any) -> Any:
    while tensor.op.type in _PASSING and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _is_read(tensor: Any, handle: str) -> bool:
    source = _through(tensor).op
    return source.type == "ReadVariableOp" and source.inputs[0].name == handle


def _depends(tensors: Any, handle: str) -> bool:
    """Whether a tensor depends, by data, on the variable."""
    waiting, seen = [t.op for t in tensors], set()
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if any(t.name == handle for t in operation.inputs):
            return True
        waiting += [t.op for t in operation.inputs]
    return False
