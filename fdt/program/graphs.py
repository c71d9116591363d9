"""Reads a step's graph: sizes of tensors, order of operations, functions that they name."""

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph, function_def_to_graph
from tensorflow.python.ops import handle_data_util

from fdt.program.body import attribute, is_stateful, named, names_functions
from fdt.program.checked_writes import check_while_running
from fdt.program.size import value_of
from fdt.program.value import Shape


@dataclasses.dataclass(frozen=True)
class Description:
    """A serialisable step, or a function that it calls.

    Attributes:
        graph: GraphDef.
        inputs: Names of its arguments' placeholders, those of captures last.
        outputs: Names of tensors.
        effects: Names of operations that must have run when it returns.
        producer: Operations and attributes known to the TensorFlow that wrote it; None if this TensorFlow did.
    """

    graph: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    effects: Sequence[str]
    producer: Any = None


def described(graph: Any) -> Description:
    """Describes a FuncGraph as it travels.

    It has its trace's shapes: those of loops' variables cannot be inferred from operations.
    """
    graph_def = graph.as_graph_def(add_shapes=True)
    call_by_operations(graph_def)
    check_while_running(graph_def)
    return Description(
        graph_def,
        [tensor.op.name for tensor in graph.inputs],
        [tensor.name for tensor in graph.outputs],
        [op.name for op in graph.control_outputs],
    )


def call_by_operations(graph: Any) -> None:
    """Replaces nodes whose type is a function's name, as TensorFlow 1's `Defun` makes them, by PartitionedCalls.

    Args:
        graph: GraphDef, changed in place.
    """
    signatures = {function.signature.name: function.signature for function in graph.library.function}
    for node in graph.node:
        _call_by_operation(node, signatures)
    for function in graph.library.function:
        renamed: dict[str, str] = {}
        for node in function.node_def:
            renamed |= _call_by_operation(node, signatures)
        for node in function.node_def if renamed else ():
            node.input[:] = [renamed.get(name, name) for name in node.input]
        for name, tensor in list(function.ret.items()):
            function.ret[name] = renamed.get(tensor, tensor)


def _call_by_operation(node: Any, signatures: Mapping[str, Any]) -> dict[str, str]:
    """Makes a node whose type is a function's name a PartitionedCall; returns its outputs' new names in a function."""
    signature = signatures.get(node.op)
    if signature is None:
        return {}
    outputs = {f"{node.name}:{given.name}:0": f"{node.name}:output:{i}" for i, given in enumerate(signature.output_arg)}
    node.attr["f"].CopyFrom(named(node.op))
    node.attr["Tin"].CopyFrom(attribute([tf.as_dtype(given.type) for given in signature.input_arg]))
    node.attr["Tout"].CopyFrom(attribute([tf.as_dtype(given.type) for given in signature.output_arg]))
    node.op = "StatefulPartitionedCall" if signature.is_stateful else "PartitionedCall"
    return outputs


def sized(description: Description, shapes: Sequence[Shape], handles: Sequence[Any]) -> Any:
    """Imports a step as a FuncGraph for arguments of these shapes, so that TensorFlow infers all tensors' shapes.

    Args:
        description: The step.
        shapes: Its arguments' shapes.
        handles: For each resource argument a handle tensor, which has the type and shape of its content.
    """
    graph = func_graph.FuncGraph("sized")
    for node in description.graph.node:
        # A function's node may be colocated with an operation of the calling graph, which is not here.
        node.attr.pop("_class", None)
    # Small tensors that a step captured are constants.
    types = {n.name: n.attr["dtype"].type for n in description.graph.node if n.op in ("Placeholder", "Const")}
    with graph.as_default():
        for name, shape, handle in zip(description.inputs, shapes, handles, strict=True):
            placeholder = tf.compat.v1.placeholder(types[name], shape)
            if handle is not None:
                handle_data_util.copy_handle_data(handle, placeholder)
            graph.inputs.append(placeholder)
        elements = tf.graph_util.import_graph_def(
            description.graph,
            input_map=dict(zip((f"{name}:0" for name in description.inputs), graph.inputs, strict=True)),
            return_elements=[*description.outputs, *description.effects],
            name="",
            producer_op_list=description.producer,
        )
    graph.outputs = elements[: len(description.outputs)]
    graph.control_outputs = elements[len(description.outputs) :]
    return graph


@dataclasses.dataclass(slots=True)
class Output:
    """An output of an operation: its name, type and shape."""

    name: str
    dtype: tf.DType
    shape: Shape

    @property
    def is_known(self) -> bool:
        """Whether all of its shape is known."""
        return self.shape is not None and None not in self.shape


class Operation:
    """An operation of the script's step, with cached properties.

    Attributes:
        made: TensorFlow's operation.
        inputs: Names of tensors.
        controls: Names of operations that it waits for.
        constant: A Const's value, once it has been read.
    """

    def __init__(self, made: Any) -> None:
        self.made, self.name, self.type, self.graph = made, made.name, made.type, made.graph
        self.inputs = [tensor.name for tensor in made.inputs]
        self.controls = [op.name for op in made.control_inputs]
        self.outputs = [Output(t.name, t.dtype, _shape(t)) for t in made.outputs]
        # Its outputs for known inputs.
        self.folded: dict[Any, list[np.ndarray]] = {}
        self._attributes: dict[str, Any] = {}

    @property
    def node_def(self) -> Any:
        """A copy of its NodeDef, which the caller may change."""
        return self.made.node_def

    def get_attr(self, name: str) -> Any:
        """Returns an attribute."""
        if name not in self._attributes:
            self._attributes[name] = self.made.get_attr(name)
        return self._attributes[name]


def _shape(tensor: tf.Tensor) -> Shape:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


class Functions:
    """The functions of a step: their graphs for given argument shapes, each made once.

    Attributes:
        definitions: FunctionDefs, by their names.
    """

    def __init__(self, description: Description) -> None:
        """Reads the functions of a step."""
        self.definitions = {f.signature.name: f for f in description.graph.library.function}
        self._sized: dict[Any, Any] = {}
        self._orders: dict[int, list[Operation]] = {}
        self._kept: list[Any] = []

    def sized(self, around: Any, name: str, arguments: Sequence[Any]) -> Any:
        """Returns the FuncGraph of a function.

        Args:
            around: The graph in which it is called.
            name: The function's name.
            arguments: The values of its arguments.
        """
        # TensorFlow infers shapes for the batch with which the step is divided; see `division/output_shapes.py` for others.
        shapes = [v.shape and tuple(map(value_of, v.shape)) for v in arguments]
        constants = [None if v.constant is None else v.constant.tobytes() for v in arguments]
        key = name, *((s, id(v.handle), c) for v, s, c in zip(arguments, shapes, constants, strict=True))
        if key not in self._sized:
            definition = self.definitions[name]
            # The function may call those of `around`.
            with around.as_default():
                graph, flat = function_def_to_graph.function_def_to_graph_def(definition)
                signature = definition.signature
                description = Description(
                    graph,
                    [given.name for given in signature.input_arg],
                    [flat[definition.ret[output.name]] for output in signature.output_arg],
                    list(definition.control_ret.values()),
                )
                self._sized[key] = sized(description, shapes, [v.handle for v in arguments])
            self._kept += [value.handle for value in arguments]
        return self._sized[key]

    def needed(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the FunctionDefs of functions, and of all functions that they name."""
        found: dict[str, Any] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = self.definitions[name]
                waiting += itertools.chain(*(functions_of(node.attr) for node in found[name].node_def))
        return found

    def in_order(self, graph: Any) -> list[Operation]:
        """Returns the operations that a graph runs in topological order, otherwise in the order in which they were made."""
        if id(graph) not in self._orders:
            self._orders[id(graph)] = _in_order(graph)
            self._kept.append(graph)
        return self._orders[id(graph)]


def _in_order(graph: Any) -> list[Operation]:
    """Sorts topologically: the order of creation is not enough, since a loop's gradient adds inputs to the loop."""
    operations = list(map(Operation, _run(graph)))
    place = {op.name: i for i, op in enumerate(operations)}
    before = {op.name: {*(name.rpartition(":")[0] for name in op.inputs), *op.controls} for op in operations}
    waiting = {name: len(names) for name, names in before.items()}
    users = collections.defaultdict(list)
    for op in operations:
        for name in before[op.name]:
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
    """Returns the operations that a function runs: those that its outputs need, and those with side effects."""
    everything = graph.get_operations()
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    waiting += [op for op in everything if is_stateful(op.type)]
    needed = {tensor.op.name for tensor in graph.inputs}
    while waiting:
        op = waiting.pop()
        if op.name not in needed:
            needed.add(op.name)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return [op for op in everything if op.name in needed]


def functions_of(attributes: Any) -> list[str]:
    """Returns the names of the functions that a node names in its attributes."""
    found: list[str] = []
    for value in attributes.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            found.append(value.func.name)
        elif kind == "list":
            found += [function.name for function in value.list.func]
    return found


def is_call(op: Any) -> bool:
    """Whether an operation calls a function, and does nothing else."""
    return op.type in ("PartitionedCall", "StatefulPartitionedCall")


def writes(op: Any) -> bool:
    """Whether an operation has a side effect; a call does not count."""
    return is_stateful(op.type) and not is_call(op)


def called(op: Any) -> list[Any]:
    """Returns FuncGraphs of all functions that an operation names."""
    return [_unsized(op.graph, name) for name in functions_of(op.node_def.attr)]


def _unsized(around: Any, name: str) -> Any:
    while around._get_function(name) is None:
        around = around.outer_graph
    function = around._get_function(name)
    graph = getattr(function, "graph", None)
    if graph is not None:
        return graph
    with around.as_default():
        definition = getattr(function, "cached_definition", None) or function.definition
        return function_def_to_graph.function_def_to_graph(definition)


def infer(op: Operation, values: Sequence[Any]) -> None:
    """Sets shapes of an operation's outputs that can be inferred from its inputs now."""
    unknown = [output for output in op.outputs if not output.is_known]
    if not op.inputs or names_functions(op.type) or all(t.dtype in (tf.variant, tf.resource) for t in unknown):
        return
    graph = func_graph.FuncGraph("infer")
    with graph.as_default():
        given = []
        for value in values:
            elements, shape = value.elements_known, value.shape and tuple(map(value_of, value.shape))
            if elements is None:
                given.append(tf.compat.v1.placeholder(value.dtype, shape))
            elif value.constant is not None:
                given.append(tf.constant(elements))
            else:
                given.append(tf.constant([value_of(each) for each in elements.flat], value.dtype, shape))
            if value.handle is not None:
                handle_data_util.copy_handle_data(value.handle, given[-1])
        attributes = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
        types = [output.dtype for output in op.outputs]
        made = graph._create_op_internal(op.type, given, types, attrs=attributes)
    for output, own, found in zip(op.outputs, op.made.outputs, made.outputs, strict=True):
        if own.shape.is_compatible_with(found.shape):
            own.set_shape(found.shape)
            output.shape = _shape(own)
