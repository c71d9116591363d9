"""Exports a traced training step as a StepProgram, a graph with holes, and loads it as a function again.

A program is a serialised graph, not a SavedModel. It has no values (these are sent as state, as are all later changes of
them), so that the same step has the same bytes and is sent and read once (docs/decisions/0001).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from fdt.errors import ProtocolError, UnsupportedError
from fdt.program.computation import adopt, of_this_process
from fdt.program.graphs import Description, described
from fdt.program.holes import OpenHole
from fdt.program.layout import Divided
from fdt.program.lookup_tables import Table, describe
from fdt.v1 import program_pb2

# The limit for tensors that a step captures; more belong in the data set.
_MAX_CONSTANT_BYTES = 256 << 20
_load_numbers = itertools.count()


def export(
    concrete: Any,
    holes: Sequence[OpenHole],
    describe: Callable[[tf.Variable], program_pb2.Variable],
) -> tuple[program_pb2.StepProgram, list[tf.Variable]]:
    """Turns a traced step into a program.

    Args:
        concrete: ConcreteFunction of step(share, *batch) -> list of tensors.
        holes: The holes that the trace left open.
        describe: Returns a variable's role and other fields; `export` fills in its tensor.

    Returns:
        The program, and the script's own variables in the program's order.

    Raises:
        UnsupportedError: The step uses a resource that is not a variable, such as a lookup table.
    """
    graph = concrete.graph
    with graph.as_default():
        meta_graph = tf.compat.v1.train.export_meta_graph(
            graph_def=described(graph).graph,
            graph=graph,
            strip_default_attrs=True,
            clear_devices=True,
            collection_list=[],
        )
    _check_tables_stay(meta_graph.graph_def)
    # A worker has no use for the names of collections and of the script's scopes.
    meta_graph.ClearField("collection_def")
    variables, placeholders, tables, constants = captured(graph)
    _embed(meta_graph.graph_def, constants)
    num_inputs = len(graph.inputs) - len(graph.captures)
    program = program_pb2.StepProgram(
        step=program_pb2.Function(
            meta_graph=meta_graph.SerializeToString(deterministic=True),
            inputs=[t.op.name for t in graph.inputs[:num_inputs]],
            variables=placeholders,
            outputs=[t.name for t in concrete.outputs],
            control_outputs=[operation.name for operation in graph.control_outputs],
            tables=list(tables),
        ),
        tables=tables.values(),
        variables=[_described(v, describe(v)) for v in variables],
        batch=[tensor_spec(t) for t in graph.inputs[1:num_inputs]],
        outputs=[program_pb2.Output(tensor=tensor_spec(t)) for t in concrete.outputs],
    )
    of_this_process(program.computation)
    positions = {id(v): i for i, v in enumerate(variables)}
    for hole in holes:
        gradients = [
            program_pb2.Gradient(variable=positions[id(v)], sparse=sparse)
            for v, sparse in zip(hole.variables, hole.sparse, strict=True)
        ]
        program.holes.add(kind=hole.kind, function=hole.function, gradients=gradients)
    return program, variables


def _described(variable: tf.Variable, description: program_pb2.Variable) -> program_pb2.Variable:
    description.tensor.CopyFrom(tensor_spec(variable))
    return description


def captured(
    graph: Any, besides: Collection[int] = ()
) -> tuple[list[tf.Variable], list[str], dict[str, program_pb2.Table], dict[str, Any]]:
    """Returns what a step uses from outside.

    Args:
        graph: FuncGraph of the step.
        besides: Ids of tensors to leave out.

    Returns:
        Its variables, the placeholders of their handles, and its tables and its constants by their placeholders.

    Raises:
        UnsupportedError: It uses a resource that is neither a variable nor a table, such as an iterator.
    """
    by_handle = {id(v.handle): v for v in graph.variables}
    variables, placeholders, tables, constants = [], [], {}, {}
    for external, internal in graph.captures:
        if id(external) in besides:
            continue
        if id(external) in by_handle:
            variables.append(by_handle[id(external)])
            placeholders.append(internal.op.name)
        elif external.dtype == tf.resource and (table := describe(external, internal)) is not None:
            tables[internal.op.name] = table
        elif external.dtype in (tf.resource, tf.variant) or not hasattr(external, "numpy"):
            raise UnsupportedError(_foreign(external, internal))
        else:
            constants[internal.op.name] = external.numpy()
    return variables, placeholders, tables, constants


def _embed(graph: Any, constants: Mapping[str, Any]) -> None:
    """Replaces placeholders by constants: a tensor from outside a step never changes."""
    protos = {name: tf.make_tensor_proto(value) for name, value in constants.items()}
    size = sum(proto.ByteSize() for proto in protos.values())
    if size > _MAX_CONSTANT_BYTES:
        raise UnsupportedError(
            f"The training step reads {size / 1e6:.0f} MB of tensors made outside it, which would travel inside the step. Hand "
            f"them over as data, or make them a tf.Variable that does not train. Allowed: {_MAX_CONSTANT_BYTES / 1e6:.0f} MB"
        )
    for node in graph.node:
        if node.name in protos:
            node.op = "Const"
            for name in set(node.attr) - {"dtype", "_output_shapes"}:
                del node.attr[name]
            node.attr["value"].tensor.CopyFrom(protos[node.name])


def _check_tables_stay(graph: Any) -> None:
    """Refuses a step that changes a lookup table: every worker has its own."""
    for node in itertools.chain(graph.node, *(f.node_def for f in graph.library.function)):
        if node.op in ("LookupTableInsertV2", "LookupTableRemoveV2", "LookupTableImportV2"):
            raise UnsupportedError(
                f"The training step changes a lookup table ({node.name}, {node.op}). Every worker has a table of its own, "
                "which no step may change. Fill the table before the training begins."
            )


def _foreign(external: tf.Tensor, internal: tf.Tensor) -> str:
    if external.dtype in (tf.resource, tf.variant):
        return (
            f"The training step uses a {external.dtype.name} that is neither a variable nor a lookup table "
            f"({internal.op.name!r}), such as an iterator or a data set. Take the batch out of it before the step, and "
            "hand it over as an argument."
        )
    return (
        f"The training step reads a tensor of another graph ({internal.op.name!r}, {external.dtype.name} {external.shape}). "
        "Hand it over as an argument."
    )


def tensor_spec(tensor: Any) -> program_pb2.Tensor:
    """Describes a tensor or variable."""
    shape = tensor.shape
    dims = [-1 if d is None else d for d in shape.as_list()] if shape.rank is not None else [-2]
    return program_pb2.Tensor(name=tensor.name, dtype=tensor.dtype.base_dtype.name, shape=dims)


def num_samples(source: program_pb2.StepProgram, shapes: Sequence[Sequence[int]]) -> int:
    """Returns how many samples a batch has.

    Args:
        source: The program.
        shapes: The shapes of the batch's arrays.
    """
    dim = 1 if source.one_row else 0
    return next((int(shape[dim]) for shape in shapes if len(shape) > dim), 1)


def shape_of(spec: program_pb2.Tensor) -> tf.TensorShape:
    """Returns a description's shape, whose rank or sizes may be unknown."""
    if list(spec.shape) == [-2]:
        return tf.TensorShape(None)
    return tf.TensorShape([None if d < 0 else d for d in spec.shape])


def dtype_of(spec: program_pb2.Tensor) -> np.dtype:
    """Returns a description's NumPy type (bfloat16 and float8 included)."""
    return _numpy_type(spec.dtype)


@functools.cache
def _numpy_type(name: str) -> np.dtype:
    return np.dtype(tf.dtypes.as_dtype(name).as_numpy_dtype)


@dataclasses.dataclass
class LoadedProgram:
    """A program that is ready to run.

    Attributes:
        meta_graph: Its graph, unchanged except for unique function names.
        variables: In the program's order; zero until they are assigned.
        tables: In the program's order.
        holes: Its holes for gradients, by the names of the functions that mark them.
        divided: The layouts of variables of which this worker holds a part, by their indices.
    """

    source: program_pb2.StepProgram
    meta_graph: Any
    variables: list[tf.Variable]
    tables: list[Table]
    holes: Mapping[str, program_pb2.Hole]
    divided: dict[int, Divided] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def step(self) -> Any:
        """WrappedFunction step(share, *batch) -> list of tensors."""
        return _import_step(self.source, self.meta_graph, self.variables, self.tables)

    @property
    def resources(self) -> list[tf.Variable | Table]:
        """The step's inputs after the batch: variables and tables."""
        return [*self.variables, *self.tables]

    @property
    def description(self) -> Description:
        """The step's graph; its inputs are the share, a batch and the resources."""
        step, meta_info = self.source.step, self.meta_graph.meta_info_def
        inputs = [*step.inputs, *step.variables, *step.tables]
        return Description(
            self.meta_graph.graph_def, inputs, step.outputs, step.control_outputs, meta_info.stripped_op_list
        )

    def with_role(self, *roles: "program_pb2.Role", among: Sequence[int] | None = None) -> list[int]:
        """Returns the indices of the variables, or of some of them, that have one of these roles."""
        indices = range(len(self.source.variables)) if among is None else among
        return [i for i in indices if self.source.variables[i].role in roles]


# From a hole's position and the hole to the Python function (share, *tensors) -> tensors that fills it, or None.
Filler = Callable[[int, program_pb2.Hole], Callable[..., Sequence[tf.Tensor]] | None]


def load(
    source: program_pb2.StepProgram,
    seed: Callable[[], int] | None = None,
    divide: Callable[[LoadedProgram], dict[int, Divided]] | None = None,
    rank: int = 0,
) -> LoadedProgram:
    """Makes a program runnable.

    Args:
        source: The program.
        seed: Returns the seed of operations that draw random numbers without one; called if there are any.
        divide: Returns the layouts of variables of which each worker holds a part; called before variables are made.
        rank: This worker's.

    Raises:
        ProtocolError: The program contradicts itself.
    """
    adopt(source.computation)
    meta_graph = tf.compat.v1.MetaGraphDef.FromString(source.step.meta_graph)
    if seed is not None:
        _set_seeds(meta_graph.graph_def, seed)
    library = {f.signature.name: f for f in meta_graph.graph_def.library.function}
    missing = [hole.function for hole in source.holes if hole.function not in library]
    if missing:
        raise ProtocolError(f"A hole names the function {missing[0]!r}, which the program does not hold.")
    _rename_functions(meta_graph.graph_def)
    of_gradients = [hole for hole in source.holes if hole.kind == program_pb2.Hole.KIND_GRADIENTS]
    holes = {library[hole.function].signature.name: hole for hole in of_gradients}
    loaded = LoadedProgram(source, meta_graph, [], make_tables(source), holes)
    if divide is not None:
        loaded.divided = divide(loaded)
    for i, variable in enumerate(source.variables):
        shape = shape_of(variable.tensor)
        if i in loaded.divided:
            shape = tf.TensorShape([int(loaded.divided[i].sizes[rank]), *shape[1:]])
        zeros = tf.zeros(shape, variable.tensor.dtype)
        loaded.variables.append(tf.Variable(zeros, trainable=False, name=f"variable_{i}"))
    return loaded


def _set_seeds(graph: Any, seed: Callable[[], int]) -> None:
    """Sets the seeds of operations that draw without one, so that workers that share a batch draw the same numbers."""
    everything = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
    drawing = [node for node in everything if _draws_without_seed(node)]
    if drawing:
        first = seed()
        for number, node in enumerate(drawing):
            node.attr["seed"].i, node.attr["seed2"].i = first, number


def _draws_without_seed(node: Any) -> bool:
    definition = op_def_registry.get(node.op)
    known = {attribute.name for attribute in definition.attr} if definition is not None else set()
    return {"seed", "seed2"} <= known and not any(n in node.attr and node.attr[n].i for n in ("seed", "seed2"))


def make_tables(source: program_pb2.StepProgram) -> list[Table]:
    """Makes a program's lookup tables on the current device, which must be a CPU."""
    return [Table(description) for description in source.tables]


def fill_holes(source: program_pb2.StepProgram, meta_graph: Any, fill: Filler) -> None:
    """Fills the holes of a program's graph, or of a part of it, in place.

    Args:
        source: The program.
        meta_graph: Has the program's function library, whose functions get unique names.
        fill: Returns the function for each hole.

    Raises:
        ProtocolError: The program contradicts itself.
    """
    # By the names in the manifest, before these are changed.
    library = {f.signature.name: f for f in meta_graph.graph_def.library.function}
    _rename_functions(meta_graph.graph_def)
    extra: list[Any] = []
    for position, hole in enumerate(source.holes):
        if hole.function not in library:
            raise ProtocolError(
                f"Hole {position} names the function {hole.function!r}, which the program does not hold."
            )
        body = fill(position, hole)
        if body is not None:
            extra += _replace_body(library[hole.function], body)
    known = {f.signature.name for f in library.values()}
    meta_graph.graph_def.library.function.extend(f for f in extra if f.signature.name not in known)


def _rename_functions(graph: Any) -> None:
    """Gives a graph's functions unique names: TensorFlow has one name space for functions per process."""
    suffix = f"_loaded_{next(_load_numbers)}"
    names = {f.signature.name: f.signature.name + suffix for f in graph.library.function}
    for node in itertools.chain(graph.node, *(f.node_def for f in graph.library.function)):
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            for function in _functions(attribute):
                function.name = names.get(function.name, function.name)
    for function in graph.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in graph.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)


def _functions(attribute: Any) -> Sequence[Any]:
    kind = attribute.WhichOneof("value")
    if kind == "func":
        return [attribute.func]
    return list(attribute.list.func) if kind == "list" else []


def _replace_body(function: Any, body: Callable[..., Sequence[tf.Tensor]]) -> list[Any]:
    """Replaces a library function's body by a traced `body`; returns the functions that the body calls."""
    attributes = [function.arg_attr[i] for i in range(len(function.signature.input_arg)) if i in function.arg_attr]
    shapes = [a.attr["_output_shapes"].list.shape[0] if "_output_shapes" in a.attr else None for a in attributes]
    if len(shapes) != len(function.signature.input_arg):
        shapes = [None] * len(function.signature.input_arg)
    specs = [
        tf.TensorSpec(tf.TensorShape(shape) if shape is not None else None, tf.dtypes.as_dtype(argument.type))
        for shape, argument in zip(shapes, function.signature.input_arg, strict=True)
    ]
    concrete = tf.function(body, autograph=False).get_concrete_function(*specs)
    name = function.signature.name
    function.CopyFrom(concrete.function_def)
    function.signature.name = name
    return list(concrete.graph.as_graph_def().library.function)


def _import_step(
    source: program_pb2.StepProgram, meta_graph: Any, variables: Sequence[tf.Variable], tables: Sequence[Table]
) -> Any:
    specs = [tf.TensorSpec([], tf.float32)] + [tf.TensorSpec(shape_of(t), t.dtype) for t in source.batch]
    return import_function(
        meta_graph,
        dict(zip(source.step.inputs, specs, strict=True)),
        dict(zip([*source.step.variables, *source.step.tables], [*variables, *tables], strict=True)),
        source.step.outputs,
        source.step.control_outputs,
    )


def import_function(
    meta_graph: Any,
    inputs: Mapping[str, tf.TensorSpec],
    resources: Mapping[str, tf.Variable | Table],
    outputs: Sequence[str],
    effects: Sequence[str],
) -> Any:
    """Imports a graph as a function.

    Args:
        meta_graph: MetaGraphDef.
        inputs: The placeholders that become arguments, in this order, with their specs.
        resources: For each placeholder of a resource the variable or table to use.
        outputs: Tensors ("node:0") to return.
        effects: Operations that must have run when the function returns.

    Returns:
        WrappedFunction from the inputs to the list of outputs.
    """

    def body(*arguments: tf.Tensor) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        input_map = {f"{name}:0": tensor for name, tensor in zip(inputs, arguments, strict=True)}
        for name, resource in resources.items():
            input_map[f"{name}:0"] = graph.capture(resource.handle)
        elements = tf.graph_util.import_graph_def(
            meta_graph.graph_def,
            input_map=input_map,
            return_elements=[*outputs, *effects],
            name="program",
            producer_op_list=meta_graph.meta_info_def.stripped_op_list,
        )
        # A caller that inlines the function waits for control outputs only; without these its updates would be pruned.
        graph.control_outputs.extend(elements[len(outputs) :])
        return elements[: len(outputs)]

    return tf.compat.v1.wrap_function(body, list(inputs.values()))
