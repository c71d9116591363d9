"""Builds a function from NodeDefs, which TensorFlow then imports all at once.

Making an operation with TensorFlow's Python API takes ten times as long as writing its NodeDef.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2, op_def_pb2, tensor_pb2
from tensorflow.python.framework import func_graph, op_def_registry

# Attributes that refer to the graph from which an operation comes.
_LEFT_OUT = ("_output_shapes", "_class", "_has_manual_control_dependencies", "_XlaMustCompile")


class Wire:
    """An output of a node, or an argument, of a function that is being built."""

    __slots__ = ("body", "dtype", "name")

    def __init__(self, body: "Body", name: str, dtype: tf.DType) -> None:
        self.body, self.name, self.dtype = body, name, dtype

    @property
    def node(self) -> str:
        """The node's name; an argument's is its own."""
        return self.name.partition(":")[0]


@dataclasses.dataclass(frozen=True)
class Spec:
    """A tensor's type and its shape; unknown dimensions are None."""

    dtype: tf.DType
    shape: tuple[int | None, ...] | None


class Sketch:
    """Operations that Python code made in a separate graph; functions get copies of them."""

    def __init__(self, make: Callable[..., Any], given: Sequence[Spec]) -> None:
        """Makes the operations.

        Args:
            make: Called with one tensor for each of `given`; returns one or several tensors.
            given: The specs of these tensors.
        """
        self._graph = func_graph.FuncGraph("sketch")
        with self._graph.as_default():
            self.inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in given]
            made = make(*self.inputs)
            self.outputs = list(made) if isinstance(made, list | tuple) else [made]
        self.operations = [op for op in self._graph.get_operations() if op.type != "Placeholder"]


class Body:
    """The nodes of a function.

    Attributes:
        outer: The function that calls this one; its tensors used here become arguments.
        arguments: From the names of outer tensors to the arguments that stand for them.
        controls: Names of the nodes for which the nodes written next wait.
        is_stateful: Whether it has a side effect.
    """

    def __init__(
        self, outer: "Body | None" = None, is_dry: bool = False, in_turn: frozenset[str] = frozenset()
    ) -> None:
        """Makes an empty function.

        Args:
            outer: See the class.
            is_dry: Whether nothing is written, since only layouts are computed.
            in_turn: Types of operations that run one after the other, in the order in which they are written.
        """
        self.outer, self.is_dry, self._in_turn = outer, is_dry, in_turn
        self.controls: list[str] = []
        self.captured: dict[Wire, Wire] = {}
        self.is_stateful = False
        # Stands for every output that is not written in a dry run.
        self.nothing = Wire(self, "", tf.variant)
        self._arguments: list[Wire] = []
        self._nodes: list[node_def_pb2.NodeDef] = []
        self._effects: list[str] = []
        self._names: collections.Counter[str] = collections.Counter()
        self._turn: list[str] = []
        # Each takes as long in an iteration of a loop as any small operation, so those with equal keys are written once.
        self._constants: dict[Any, Wire] = {}

    def around(self) -> "Iterator[Body]":
        """Yields this body and its outer ones."""
        body: Body | None = self
        while body is not None:
            yield body
            body = body.outer

    def argument(self, dtype: tf.DType) -> Wire:
        """Adds an argument."""
        self._arguments.append(Wire(self, self._unique(f"a{len(self._arguments)}"), dtype))
        return self._arguments[-1]

    def here(self, wire: Wire) -> Wire:
        """Returns the wire in this function for a wire of this or an outer function."""
        if wire.body is self:
            return wire
        if wire not in self.captured:
            assert self.outer is not None, f"{wire.name} is not of this function or one around it."
            self.outer.here(wire)
            self.captured[wire] = self.argument(wire.dtype)
        return self.captured[wire]

    def add(self, node: node_def_pb2.NodeDef, inputs: Sequence[Wire], key: Any = None) -> list[Wire]:
        """Adds a node; returns its outputs.

        Args:
            node: With an operation and all its attributes; its name is made unique.
            inputs: Wires of this function or of outer ones.
            key: Of a constant, equal for constants that may be one; None for one of its own. It must not depend on a worker's
                own numbers, so that workers' graphs do not differ for that.
        """
        kind = node.op
        waits = [*self.controls, *(self._turn if kind in self._in_turn else [])]
        if kind != "Const" or waits:
            key = None
        if key in self._constants:
            return [self._constants[key]]
        node.name = self._unique(node.name)
        for name in _LEFT_OUT:
            if name in node.attr:
                del node.attr[name]
        del node.input[:]
        node.input.extend([self.here(wire).name for wire in inputs])
        if waits:
            node.input.extend([f"^{control}" for control in dict.fromkeys(waits)])
        self._nodes.append(node)
        if is_stateful(kind):
            self.is_stateful = True
            self._effects.append(node.name)
        if kind in self._in_turn:
            self._turn = [node.name]
        made = [Wire(self, f"{node.name}:{output}", dtype) for output, dtype in _outputs(node)]
        if key is not None:
            self._constants[key] = made[0]
        return made

    def constant(self, value: np.ndarray, name: str = "constant", is_shared: bool = False) -> Wire:
        """Writes a constant.

        Args:
            value: Its value.
            name: The node's name.
            is_shared: Whether it may be one with others of the same value, which then are the same on all workers.
        """
        if self.is_dry:
            return self.nothing
        proto = tensor_proto(value)
        node = node_def_pb2.NodeDef(name=name, op="Const")
        node.attr["value"].tensor.CopyFrom(proto)
        node.attr["dtype"].type = proto.dtype
        # A constant waits for nothing, whatever `controls` says.
        controls, self.controls = self.controls, []
        (wire,) = self.add(node, [], proto.SerializeToString(deterministic=True) if is_shared else None)
        self.controls = controls
        return wire

    def draw(self, sketch: Sketch, inputs: Sequence[Wire], name: str) -> list[Wire]:
        """Copies the operations of a sketch into the function; returns its outputs.

        Args:
            sketch: The sketch.
            inputs: Replace the sketch's inputs.
            name: Prefix of the nodes' names.
        """
        wires = {tensor.name: self.here(wire) for tensor, wire in zip(sketch.inputs, inputs, strict=True)}
        names: dict[str, str] = {}
        before = self.controls
        for op in sketch.operations:
            # A control input from a placeholder becomes one from the given input.
            waits = [names[c.name] for c in op.control_inputs if c.name in names]
            waits += [wires[t.name].node for c in op.control_inputs if c.name not in names for t in c.outputs]
            self.controls = [*(before if not op.inputs else ()), *(w for w in waits if w not in self._argument_names)]
            node = op.node_def
            node.name = f"{name}/{op.name}"
            made = self.add(node, [wires[t.name] for t in op.inputs], (sketch, op.name))
            names[op.name] = made[0].node if made else self._nodes[-1].name
            wires.update(zip((tensor.name for tensor in op.outputs), made, strict=True))
        self.controls = before
        return [wires[tensor.name] for tensor in sketch.outputs]

    def after(self, nodes: Collection[str], wire: Wire) -> Wire:
        """Returns a wire that is there once some nodes of this function have run; arguments among them are there already."""
        waits = [name for name in nodes if name not in self._argument_names]
        if not waits:
            return wire
        node = node_def_pb2.NodeDef(name="after", op="Identity")
        node.attr["T"].type = wire.dtype.as_datatype_enum
        before, self.controls = self.controls, waits
        (made,) = self.add(node, [wire])
        self.controls = before
        return made

    @property
    def _argument_names(self) -> set[str]:
        return {argument.name for argument in self._arguments}

    def finished(self, name: str, outputs: Sequence[Wire], captured: Sequence[Wire]) -> function_pb2.FunctionDef:
        """Returns the function.

        Args:
            name: Its name.
            outputs: Its outputs.
            captured: Outer wires that it gets after its own arguments, in this order; it may use only some of them.
        """
        inside = [self.here(wire) for wire in captured]
        own = [argument for argument in self._arguments if argument not in set(inside)]
        argument = op_def_pb2.OpDef.ArgDef
        signature = op_def_pb2.OpDef(
            name=name,
            is_stateful=self.is_stateful,
            input_arg=[argument(name=w.name, type=w.dtype.as_datatype_enum) for w in [*own, *inside]],
            output_arg=[argument(name=f"o{i}", type=w.dtype.as_datatype_enum) for i, w in enumerate(outputs)],
            control_output=[f"c{i}" for i in range(len(self._effects))],
        )
        return function_pb2.FunctionDef(
            signature=signature,
            node_def=self._nodes,
            ret={f"o{i}": self.here(wire).name for i, wire in enumerate(outputs)},
            control_ret={f"c{i}": effect for i, effect in enumerate(self._effects)},
        )

    def _unique(self, name: str) -> str:
        self._names[name] += 1
        count = self._names[name]
        return name if count == 1 else self._unique(f"{name}_{count - 1}")


# Stateful for TensorFlow, but without a side effect.
LOOKING = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
        "Placeholder",
        "VarHandleOp",
    }
)


@functools.cache
def is_stateful(kind: str) -> bool:
    """Whether operations of a type have a side effect."""
    definition = op_def_registry.get(kind)
    return definition is not None and definition.is_stateful and kind not in LOOKING


@functools.cache
def names_functions(kind: str) -> bool:
    """Whether operations of a type name functions in their attributes."""
    definition = op_def_registry.get(kind)
    return definition is not None and any("func" in attribute.type for attribute in definition.attr)


@functools.cache
def _output_arguments(kind: str) -> list[tuple[str, str, int, str, str]]:
    return [
        (each.name, each.type_attr, each.type, each.number_attr, each.type_list_attr)
        for each in op_def_registry.get(kind).output_arg
    ]


def _outputs(node: node_def_pb2.NodeDef) -> Iterator[tuple[str, tf.DType]]:
    """Yields a node's outputs: their names within a function, and their types."""
    for name, of_type, dtype, of_number, of_list in _output_arguments(node.op):
        types = [node.attr[of_type].type if of_type else dtype]
        if of_number:
            types *= node.attr[of_number].i
        elif of_list:
            types = list(node.attr[of_list].list.type)
        for place, each in enumerate(types):
            yield f"{name}:{place}", tf.as_dtype(each)


def tensor_proto(value: np.ndarray) -> tensor_pb2.TensorProto:
    """Returns a constant as a TensorProto."""
    dtype = tf.as_dtype(value.dtype)
    if dtype == tf.string:
        return tf.make_tensor_proto(value)
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, tensor_content=np.ascontiguousarray(value).tobytes())
    for size in value.shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def attribute(value: Any) -> attr_value_pb2.AttrValue:
    """Returns an integer, a bool, a type, or a list of integers or types as an AttrValue."""
    made = attr_value_pb2.AttrValue
    if isinstance(value, bool):
        return made(b=value)
    if isinstance(value, int):
        return made(i=value)
    if isinstance(value, tf.DType):
        return made(type=value.as_datatype_enum)
    if all(isinstance(each, tf.DType) for each in value):
        return made(list=made.ListValue(type=[each.as_datatype_enum for each in value]))
    return made(list=made.ListValue(i=value))


def named(function: str) -> attr_value_pb2.AttrValue:
    """Returns an attribute that names a function."""
    return attr_value_pb2.AttrValue(func=attr_value_pb2.NameAttrList(name=function))
