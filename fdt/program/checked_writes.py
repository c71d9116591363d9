"""Replaces writes to variables that do not compare shapes while they run by operations that do.

TensorFlow compares the shapes of what these write with the variable's when a graph is imported, where they are known, and not
when they run: in a branch they read and wrote behind their tensors (`tests/integration/test_checked_writes.py`). Admission does
not list them, so a client exports calls of functions that do the same (docs/decisions/0099). `Empty` is not listed either:
it may give out memory that nobody has written. Where it is to be zeros, as in `tf.nn.ctc_loss`, a function makes zeros.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

# What TensorFlow makes of the names of `_rows` and `_given_rows`.
_ROWS = re.compile(r"_fdt_(given_)?rows_\d+$")
_Types = frozenset[tuple[str, int]]


def check_while_running(graph: tf.compat.v1.GraphDef) -> None:
    """Replaces unchecked writes, and memory that is to be zeros, in a graph and in its functions."""
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    added: dict[str, Any] = {}
    ranks = _ranks(graph)
    for node in [node for nodes in bodies for node in nodes if node.op in _CHECKED or _is_zeros(node)]:
        types = frozenset((name, value.type) for name, value in node.attr.items() if value.type)
        if _is_zeros(node):
            function = _zeros(node.attr["dtype"].type)
        else:
            are_rows = node.op in _OF_ROWS and _has_rows(*(ranks.get(name) for name in node.input[1:3]))
            function = _function(_OF_ROWS[node.op] if are_rows else _CHECKED[node.op], node.op, types)
        added[function.name] = function.function_def
        _call(node, function)
    graph.library.function.extend(added.values())


def row_numbers(node: Any) -> int | None:
    """Returns which input of a node has the numbers of the rows that it writes in its first input; None for any other node."""
    if node.op.startswith("ResourceSparseApply"):
        return [argument.name for argument in op_def_registry.get(node.op).input_arg].index("indices")
    return 1 if node.op == "StatefulPartitionedCall" and _ROWS.search(node.attr["f"].func.name) else None


# Kept: TensorFlow forgets a function's name when its last user goes, also where it was imported under it.
@functools.cache
def _function(write: Callable[..., None], op: str, types: _Types) -> Any:
    """Returns a function with an operation's inputs, which does the same, for the types of its attributes."""
    inputs = [
        tf.TensorSpec(None, argument.type or dict(types)[argument.type_attr])
        for argument in op_def_registry.get(op).input_arg
    ]
    return tf.function(write, autograph=False).get_concrete_function(*inputs)


def _ranks(graph: tf.compat.v1.GraphDef) -> dict[str, int]:
    """Returns the ranks of tensors of a graph, not of its functions, where they are known."""
    found = {}
    for node in graph.node:
        for place, shape in enumerate(node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()):
            if not shape.unknown_rank:
                found[f"{node.name}:{place}" if place else node.name] = len(shape.dim)
    return found


def _has_rows(indices: int | None, updates: int | None) -> bool:
    """Whether updates have a row for each index: a single number for all has no dimension."""
    return indices == 1 and updates is not None and updates > 1


def _is_zeros(node: Any) -> bool:
    return node.op == "Empty" and node.attr["init"].b


@functools.cache
def _zeros(kind: int) -> Any:
    """Returns a function of a shape."""

    def fdt_zeros(shape: tf.Tensor) -> tf.Tensor:
        return tf.zeros(shape, tf.dtypes.as_dtype(kind))

    return tf.function(fdt_zeros, autograph=False).get_concrete_function(tf.TensorSpec([None], tf.int32))


def _call(node: Any, function: Any) -> None:
    """Makes a node a call of a function, with the inputs that it has."""
    for name in [name for name in node.attr if name[:1] != "_"]:
        del node.attr[name]
    node.op = "StatefulPartitionedCall"
    node.attr["f"].func.name = function.name
    node.attr["Tin"].list.type.extend(tensor.dtype.as_datatype_enum for tensor in function.inputs)
    node.attr["Tout"].list.SetInParent()
    node.attr["Tout"].list.type.extend(tensor.dtype.as_datatype_enum for tensor in function.outputs)


def _rows(write: Callable[..., Any]) -> Callable[..., None]:
    """Returns a write to the rows that a list of indices names, by an operation that takes them as a column."""

    def fdt_rows(variable: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> None:
        # One number may stand for all.
        shape = tf.concat([tf.shape(indices), tf.raw_ops.VariableShape(input=variable)[1:]], 0)
        write(ref=variable, indices=indices[..., None], updates=tf.broadcast_to(updates, shape))

    return fdt_rows


def _given_rows(write: Callable[..., Any]) -> Callable[..., None]:
    """Returns the same for updates that have a row for each index."""

    def fdt_given_rows(variable: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> None:
        write(ref=variable, indices=indices[..., None], updates=updates)

    return fdt_given_rows


def fdt_amsgrad(variable: tf.Tensor, m: tf.Tensor, v: tf.Tensor, most: tf.Tensor, *numbers: tf.Tensor) -> None:
    """Reddi, Kale, Kumar: On the Convergence of Adam and Beyond, 2018; in the order in which TensorFlow computes it."""
    power_1, power_2, rate, beta_1, beta_2, epsilon, gradient = numbers
    read = functools.partial(tf.raw_ops.ReadVariableOp, dtype=gradient.dtype)
    alpha = rate * tf.sqrt(1 - power_2) / (1 - power_1)
    tf.raw_ops.AssignAddVariableOp(resource=m, value=(gradient - read(resource=m)) * (1 - beta_1))
    tf.raw_ops.AssignAddVariableOp(resource=v, value=(tf.square(gradient) - read(resource=v)) * (1 - beta_2))
    tf.raw_ops.AssignVariableOp(resource=most, value=tf.maximum(read(resource=most), read(resource=v)))
    step = read(resource=m) * alpha / (tf.sqrt(read(resource=most)) + epsilon)
    tf.raw_ops.AssignSubVariableOp(resource=variable, value=step)


def fdt_adadelta(variable: tf.Tensor, mean: tf.Tensor, moved: tf.Tensor, *numbers: tf.Tensor) -> None:
    """Zeiler: ADADELTA, 2012; in the order in which TensorFlow computes it."""
    rate, rho, epsilon, gradient = numbers
    read = functools.partial(tf.raw_ops.ReadVariableOp, dtype=gradient.dtype)
    mean_square = read(resource=mean) * rho + tf.square(gradient) * (1 - rho)
    tf.raw_ops.AssignVariableOp(resource=mean, value=mean_square)
    step = tf.sqrt(read(resource=moved) + epsilon) * tf.math.rsqrt(mean_square + epsilon) * gradient
    tf.raw_ops.AssignSubVariableOp(resource=variable, value=step * rate)
    tf.raw_ops.AssignVariableOp(resource=moved, value=read(resource=moved) * rho + tf.square(step) * (1 - rho))


# `ResourceScatterMul` and `-Div` have no checked sibling.
_WRITES = {
    "ResourceScatterAdd": tf.raw_ops.ResourceScatterNdAdd,
    "ResourceScatterSub": tf.raw_ops.ResourceScatterNdSub,
    "ResourceScatterMin": tf.raw_ops.ResourceScatterNdMin,
    "ResourceScatterMax": tf.raw_ops.ResourceScatterNdMax,
    "ResourceScatterUpdate": tf.raw_ops.ResourceScatterNdUpdate,
}
_OF_ROWS = {name: _given_rows(write) for name, write in _WRITES.items()}
# Operation -> what does the same with its inputs.
_CHECKED: dict[str, Callable[..., None]] = {
    **{name: _rows(write) for name, write in _WRITES.items()},
    "ResourceApplyAdamWithAmsgrad": fdt_amsgrad,
    "ResourceApplyAdadelta": fdt_adadelta,
}
