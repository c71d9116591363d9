"""Which metrics may be summed over workers: those whose state only ever has something added to it."""

from collections.abc import Iterator, Mapping
from typing import Any

from fdt.capture.keras.version import all_of
from fdt.capture.step.trial_holes import IndivisibleError

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
        IndivisibleError: A metric writes its state in another way; it is named.
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
                raise IndivisibleError(
                    f"the metric {metric.name!r} ({type(metric).__name__}) changes its state {variable.name!r} by "
                    f"{operation.type}, not by adding to it, so the states of several workers cannot be put together"
                )


def adds_up_by_itself(metric: Any) -> bool:
    """Returns whether a metric is Keras's own, of labels and predictions: what it adds for a batch is a sum over rows.

    What a metric of the script's adds, or what a mean of Keras's is told by the script, may be anything.
    """
    told = type(metric).__name__ in ("Mean", "Sum")
    return not told and any(all_of(package, [metric]) for package in ("keras", "tf_keras"))


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
    """Whether a value comes, by data, from the variable's own."""
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
