"""Makes the changes that a step makes in plain Keras when it fetches the next batch and there is none.

Plain Keras fetches the batch within the function that trains. When that fails, TensorFlow has counted `iterations`, drawn for
random layers, and, where the data set says how many rows each batch has, counted these in the means of losses and metrics.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from fdt.capture.step.writes import READERS

# Operations whose result is known if their input's shape is.
_OF_SHAPES = ("Shape", "Size", "Rank")


class WithoutData:
    """The writes of a traced step that depend on no data; a call makes them on this machine."""

    def __init__(self, graph: Any, variables: Sequence[tf.Variable], inputs: Sequence[tf.TensorSpec] | None = None):
        """
        Args:
            graph: FuncGraph of step(share, *batch).
            variables: The step's variables.
            inputs: Specs of its batches in plain python, in the order of the arguments; None if they are as traced.
        """
        share, *batch = graph.inputs[: len(graph.inputs) - len(graph.captures)]
        names = [tensor.op.name for tensor in batch]
        shapes = [tensor.shape for tensor in batch] if inputs is None else [spec.shape for spec in inputs]
        self._handles = {i.op.name: e for e, i in graph.captures if any(e is v.handle for v in variables)}
        shaped = _with_shapes(graph, dict(zip(names, shapes, strict=True)))
        found = _Found(shaped, names, self._handles)
        # A share of 1: holes return the gradients that they get.
        found.constants[share.op.name] = 1.0
        self._makes_some = bool(list(found.writes()))
        self._graph_def = _cut(shaped, found.needed, found.constants)
        self._function = tf.function(self._make, autograph=False)

    def __call__(self) -> None:
        if self._makes_some:
            self._function()

    def _make(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        there = {node.name for node in self._graph_def.node}
        handles = {f"{n}:0": graph.capture(h) for n, h in self._handles.items() if n in there}
        tf.graph_util.import_graph_def(self._graph_def, input_map=handles, name="")


class _Found:
    """Follows operations back to those that they depend on.

    Attributes:
        constants: Values that are known without data, by the name of the operation.
        needed: Names of the writes, and of all operations that they depend on.
    """

    def __init__(self, graph: tf.Graph, data: Collection[str], handles: Collection[str]):
        self.constants: dict[str, Any] = {}
        self.needed: set[str] = set()
        self._graph, self._handles = graph, handles
        self._data = data

    def writes(self) -> Iterator[tf.Operation]:
        """Yields the operations that write a variable and depend on no data."""
        for operation in self._graph.get_operations():
            writes = operation.type not in READERS and any(t.op.name in self._handles for t in operation.inputs)
            if writes and self._stands_on_none(operation):
                yield operation

    def _stands_on_none(self, operation: tf.Operation) -> bool:
        waiting, seen = [operation], set[str]()
        while waiting:
            found = waiting.pop()
            if found.name in self._data:
                return False
            if found.name not in seen:
                seen.add(found.name)
                waiting += [] if self._is_constant(found) else [*(t.op for t in found.inputs), *found.control_inputs]
        self.needed |= seen
        return True

    def _is_constant(self, operation: tf.Operation) -> bool:
        if operation.type in _OF_SHAPES and operation.name not in self.constants:
            value = tf.get_static_value(operation.outputs[0])
            if value is not None:
                self.constants[operation.name] = value
        return operation.name in self.constants


def _with_shapes(graph: Any, shapes: Mapping[str, tf.TensorShape]) -> tf.Graph:
    """Returns a copy of a graph with inputs of these shapes, and the shapes of all other tensors inferred anew."""
    definition, captured = graph.as_graph_def(), {internal.op.name: internal for _, internal in graph.captures}
    for node in definition.node:
        if node.name in shapes:
            node.attr["shape"].shape.CopyFrom(shapes[node.name].as_proto())
    for node in [node for node in definition.node if node.name in captured]:
        definition.node.remove(node)
    shaped = tf.Graph()
    with shaped.as_default():
        given = {}
        for name, internal in captured.items():
            # A variable's shape is in its handle's data, which a graph definition does not have.
            given[f"{name}:0"] = tf.compat.v1.placeholder(internal.dtype, internal.shape, name)
            handle_data_util.copy_handle_data(internal, given[f"{name}:0"])
        tf.graph_util.import_graph_def(definition, given, name="")
    return shaped


def _cut(graph: tf.Graph, names: Collection[str], constants: Mapping[str, Any]) -> Any:
    """Returns a definition of the operations with these names, known values replaced by constants."""
    definition = graph.as_graph_def()
    for node in [node for node in definition.node if node.name not in names]:
        definition.node.remove(node)
    for node in definition.node:
        node.attr.pop("_class", None)
        if node.name in constants:
            dtype = graph.get_operation_by_name(node.name).outputs[0].dtype
            del node.input[:]
            node.op = "Const"
            node.attr.clear()
            node.attr["dtype"].type = dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(constants[node.name], dtype))
    return definition
