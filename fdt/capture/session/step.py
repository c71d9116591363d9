"""Makes a function of one `Session.run` of TensorFlow 1, with holes for its gradients.

The graph is cut twice. Operations before the step (an iterator's batch, a queue's, a Python function's) run on the script's
machine, and the step gets their results as data. Operations before the gradients are imported first; the gradients pass through
a hole; the other operations are imported on top of the exchanged gradients.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.writes import READERS
from fdt.errors import UnsupportedError

# Computed where the script runs: they read its data, call its Python, or use resources that only it has.
_LOCAL = {
    "EagerPyFunc",
    "IteratorGetNext",
    "IteratorGetNextSync",
    "LookupTableFindV2",
    "PyFunc",
    "PyFuncStateless",
    "QueueDequeueManyV2",
    "QueueDequeueUpToV2",
    "QueueDequeueV2",
    "ReadFile",
    "ReaderReadV2",
}
_SUMMARIES = {
    "AudioSummaryV2",
    "HistogramSummary",
    "ImageSummary",
    "MergeSummary",
    "ScalarSummary",
    "TensorSummary",
    "TensorSummaryV2",
}
_VARIABLE = "VarHandleOp"
_OLD_VARIABLES = {"Variable", "VariableV2"}
VARIABLES = {_VARIABLE, *_OLD_VARIABLES}


@dataclasses.dataclass(frozen=True)
class Gradients:
    """What one call of tf.gradients returned.

    Attributes:
        of: From the name of a variable's handle operation to its gradient, tf.Tensor or tf.IndexedSlices.
    """

    of: Mapping[str, Any]


class Closure:
    """The part of a graph that some fetches need.

    Attributes:
        operations: Its operations, by name.
        local: Tensors that are computed where the script runs, in a fixed order.
    """

    def __init__(self, fetches: Iterable[Any], targets: Iterable[Any], fed: Iterable[str]):
        """Walks back from the fetches.

        Args:
            fetches: Tensors.
            targets: Operations.
            fed: Names of the fed tensors.
        """
        given = set(fed)
        local: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        waiting = [*targets]

        def need(tensors: Iterable[Any]) -> None:
            for tensor in tensors:
                if tensor.op.type in _LOCAL and tensor.name not in given:
                    local[tensor.name] = tensor
                elif tensor.name not in given:
                    waiting.append(tensor.op)

        need(fetches)
        while waiting:
            operation = waiting.pop()
            if operation.name not in self.operations:
                self.operations[operation.name] = operation
                need(operation.inputs)
                waiting += operation.control_inputs
        self.local = [local[name] for name in sorted(local)]

    def lacks_a_feed(self) -> bool:
        """Returns whether a placeholder is needed that is not fed."""
        return any(operation.type == "Placeholder" for operation in self.operations.values())

    def handles(self) -> set[str]:
        """Returns the names of the handle operations of variables that are used."""
        return {name for name, operation in self.operations.items() if operation.type == _VARIABLE}

    def written(self) -> set[str]:
        """Returns the names of the handle operations of variables that may be changed."""
        return {t.op.name for operation in self._writing() for t in operation.inputs if t.op.type == _VARIABLE}

    def after_updates(self) -> set[str]:
        """Returns the names of operations that change variables, or that wait for such an operation."""
        users: dict[str, list[str]] = {}
        for name, operation in self.operations.items():
            for before in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
                users.setdefault(before.name, []).append(name)
        found: set[str] = set()
        waiting = [operation.name for operation in self._writing()]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += users.get(name, [])
        return found

    def reads_of(self, variables: set[str]) -> list[Any]:
        """Returns the reads that wait for nothing, of variables given by the names of their handle operations."""
        reads = (o for _, o in sorted(self.operations.items()) if o.type == "ReadVariableOp" and not o.control_inputs)
        return [read.outputs[0] for read in reads if read.inputs[0].op.name in variables]

    def _writing(self) -> list[Any]:
        return [
            operation
            for operation in self.operations.values()
            if operation.type not in {*READERS, "Identity"}
            and any(tensor.op.type in VARIABLES for tensor in operation.inputs)
        ]

    def last_gradients(self, calls: Sequence[Gradients]) -> list[Gradients]:
        """Returns, of each call of tf.gradients, the gradients that reach a variable's update, the last ones on the way."""
        found: dict[int, dict[str, Any]] = {}
        places = {
            tensor.name: (number, handle, gradient)
            for number, call in enumerate(calls)
            for handle, gradient in call.of.items()
            for tensor in _tensors(gradient)
        }
        seen: set[str] = set()
        waiting = self._writing()
        while waiting:
            operation = waiting.pop()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            for tensor in operation.inputs:
                if tensor.name in places:
                    number, handle, gradient = places[tensor.name]
                    found.setdefault(number, {})[handle] = gradient
                elif tensor.op.name in self.operations:
                    waiting.append(tensor.op)
            waiting += [before for before in operation.control_inputs if before.type not in READERS]
        return [Gradients(found[number]) for number in sorted(found)]


def beneath_summaries(fetches: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Divides fetches into those that a step returns and summaries, which are written where the script runs.

    Returns:
        The tensors that the step returns: the fetches that are no summaries, then the tensors in summaries; the summaries.
    """
    summaries = [tensor for tensor in fetches if tensor.op.type in _SUMMARIES]
    found = {tensor.name: tensor for tensor in fetches if tensor.op.type not in _SUMMARIES}
    waiting = [tensor.op for tensor in summaries]
    while waiting:
        for tensor in waiting.pop().inputs:
            if tensor.op.type in _SUMMARIES:
                waiting.append(tensor.op)
            elif tensor.op.type != "Const":
                found.setdefault(tensor.name, tensor)
    return list(found.values()), summaries


def step_function(
    graph: Any,
    closure: Closure,
    inputs: Sequence[Any],
    fetches: Sequence[Any],
    gradients: Sequence[Gradients],
    variables: Mapping[str, tf.Variable],
    exchange: Callable[[list[Any], list[tf.Variable]], list[Any]],
    last: Sequence[Any] = (),
) -> Callable[..., list[tf.Tensor]]:
    """Returns the step as a function of its inputs, to be called while it is traced.

    Args:
        graph: The tf.Graph.
        closure: The part of it that the step needs.
        inputs: Tensors that are given: fed, or computed by the script.
        fetches: Tensors that it returns.
        gradients: The gradients that pass through a hole.
        variables: The stand-ins of the graph's variables, by the names of handle operations.
        exchange: Exchanges gradients.
        last: Reads of variables that come after all updates.

    Raises:
        UnsupportedError: The step uses a variable or resource that cannot leave the graph.
    """
    _check(closure)
    roots = [tensor for call in gradients for gradient in call.of.values() for tensor in _tensors(gradient)]
    before = set(Closure(roots, (), [tensor.name for tensor in inputs]).operations)
    graph_def = graph.as_graph_def()
    nodes, library = {node.name: node for node in graph_def.node}, graph_def.library
    first, second = _in_order(nodes, closure, before, last)
    used = {tensor.name: tensor for name in second for tensor in closure.operations[name].inputs}
    used |= {tensor.name: tensor for tensor in (*roots, *fetches)}
    passed = [name for name, tensor in used.items() if tensor.op.name in first]

    def session_run(*arguments: tf.Tensor) -> list[tf.Tensor]:
        inside = tf.compat.v1.get_default_graph()
        known: dict[str, Any] = dict(zip((tensor.name for tensor in inputs), arguments, strict=True))
        for name in closure.handles():
            inside.watch_variable(variables[name])
            known[f"{name}:0"] = inside.capture(variables[name].handle)
        known |= dict(zip(passed, _imported(nodes, library, first, known, passed), strict=True))
        for call in gradients:
            handles = list(call.of)
            taken = [_from(known, call.of[h], variables[h]) for h in handles]
            filled = exchange(taken, [variables[h] for h in handles])
            for handle, gradient in zip(handles, filled, strict=True):
                names = (tensor.name for tensor in _tensors(call.of[handle]))
                known |= dict(zip(names, _tensors(gradient), strict=True))
        wanted = [tensor.name for tensor in fetches if tensor.name not in known]
        known |= dict(zip(wanted, _imported(nodes, library, second, known, wanted), strict=True))
        return [known[tensor.name] for tensor in fetches]

    # A session has one graph for batches of all sizes.
    session_run.fdt_any_size = True  # type: ignore[attr-defined]
    return session_run


def _in_order(
    nodes: Iterable[str], closure: Closure, before: Container[str], last: Sequence[Any]
) -> tuple[dict[str, None], list[str]]:
    """Returns the operations of a step that come before its gradients, and the others, in the order of their import."""
    handles = closure.handles()
    kept = [name for name in nodes if name in closure.operations and name not in handles]
    after, ends = closure.after_updates(), {tensor.op.name for tensor in last}
    # A session first runs operations that wait for nothing, so one that is not ordered after an update sees the old value.
    second = sorted((name for name in kept if name not in before), key=lambda name: (name in ends, name in after))
    return dict.fromkeys(name for name in kept if name in before), second


def _imported(
    nodes: Mapping[str, Any], library: Any, names: Iterable[str], known: Mapping[str, Any], wanted: Sequence[str]
) -> list[Any]:
    """Imports nodes into the graph that is being built, on top of known tensors; returns the wanted ones."""
    graph_def = tf.compat.v1.GraphDef(library=library)
    chosen = set(names)
    for name in names:
        node = graph_def.node.add()
        node.CopyFrom(nodes[name])
        node.device = ""
        if "_class" in node.attr:
            del node.attr["_class"]
        # Operations outside `names` have been imported before, or are given.
        kept = [i for i in node.input if not i.startswith("^") or i[1:] in chosen]
        del node.input[:]
        node.input.extend(kept)
    used = {_full(i) for node in graph_def.node for i in node.input if not i.startswith("^")}
    input_map = {
        name: tensor for name, tensor in known.items() if name in used and name.rsplit(":", 1)[0] not in chosen
    }
    return list(tf.graph_util.import_graph_def(graph_def, input_map, list(wanted), name="graph") or ())


def _check(closure: Closure) -> None:
    for name, operation in closure.operations.items():
        if operation.type in _OLD_VARIABLES:
            raise UnsupportedError(
                f"The variable {name!r} is of TensorFlow 1's old kind (use_resource=False), which cannot be shared between "
                "workers. Leave use_resource out, or set it to True."
            )
        made = [tensor.dtype for tensor in operation.outputs if tensor.dtype in (tf.resource, tf.variant)]
        if made and operation.type not in (_VARIABLE, "Placeholder") and not operation.inputs:
            raise UnsupportedError(
                f"The training step uses {name!r} ({operation.type}), a resource of the session's. Expected: variables, and "
                "data that are fed or come from an iterator. Take it out of the step."
            )


def _tensors(gradient: Any) -> list[Any]:
    """Returns the tensors that a gradient consists of."""
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _from(known: Mapping[str, Any], gradient: Any, variable: tf.Variable) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return known[gradient.name]
    shape = tf.constant(variable.shape.as_list(), tf.int64)
    return tf.IndexedSlices(known[gradient.values.name], known[gradient.indices.name], shape)


def _full(name: str) -> str:
    return name if ":" in name else f"{name}:0"
