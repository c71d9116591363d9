"""Orders matrix products in a worker's graph so that a CPU computes them fast (`fdt.program.matrix_products`).

The number of rows is known at each step only, so both orders are in the graph.
"""

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from fdt.program.matrix_products import most_rows
from fdt.program.node_graph import data_inputs

_TYPES = (tf.float32.as_datatype_enum, tf.float64.as_datatype_enum)


def reorder(graph_def: Any, described: Any) -> None:
    """Replaces products by ones that choose their order at run time, by their number of rows.

    Args:
        graph_def: GraphDef, changed in place; the functions that it calls are not changed.
        described: A GraphDef in which these nodes have the shapes known at their trace.
    """
    shapes = {node.name: node.attr["_output_shapes"].list.shape for node in described.node}
    made: list[Any] = []
    for node in graph_def.node:
        if node.op == "MatMul" and node.attr["transpose_b"].b and not node.attr["transpose_a"].b:
            name, index = data_inputs(node)[1]
            most = _most_rows(shapes[name][index]) if name in shapes and len(shapes[name]) > index else 0
            if most and node.attr["T"].type in _TYPES:
                made += _choose(node, most)
    graph_def.node.extend(made)


def _most_rows(weights: Any) -> int:
    """Returns up to how many rows of A the other order is faster, given B's shape; 0 if the shape is not known."""
    if weights.unknown_rank or any(dimension.size < 0 for dimension in weights.dim):
        return 0
    return most_rows(*(dimension.size for dimension in weights.dim))


def _choose(product: Any, most: int) -> list[Any]:
    """Replaces a product by a choice between the two orders; returns the operations to add."""
    name, dtype, (a, b, *waits) = product.name, product.attr["T"].type, product.input
    of_type = {"T": {"type": dtype}}
    made = [
        _constant(f"{name}/zero", 0),
        _constant(f"{name}/most", most),
        _constant(f"{name}/turned", [1, 0]),
        _node("Shape", f"{name}/shape", [a, *waits], T=of_type["T"], out_type={"type": tf.int32.as_datatype_enum}),
        _node(
            "GatherV2",
            f"{name}/rows",
            [f"{name}/shape", f"{name}/zero", f"{name}/zero"],
            **{key: {"type": tf.int32.as_datatype_enum} for key in ("Tparams", "Tindices", "Taxis")},
        ),
        _node("LessEqual", f"{name}/few", [f"{name}/rows", f"{name}/most"], T={"type": tf.int32.as_datatype_enum}),
        _node("Switch", f"{name}/a", [a, f"{name}/few"], **of_type),
        _node("Switch", f"{name}/b", [b, f"{name}/few"], **of_type),
        _node("MatMul", f"{name}/many_rows", [f"{name}/a", f"{name}/b"], transpose_b={"b": True}, **of_type),
        _node("MatMul", f"{name}/few_rows", [f"{name}/b:1", f"{name}/a:1"], transpose_b={"b": True}, **of_type),
        _node(
            "Transpose",
            f"{name}/product",
            [f"{name}/few_rows", f"{name}/turned"],
            Tperm={"type": tf.int32.as_datatype_enum},
            **of_type,
        ),
    ]
    # Keep the product's name, so that its users find it.
    product.CopyFrom(_node("Merge", name, [f"{name}/many_rows", f"{name}/product"], N={"i": 2}, **of_type))
    return made


def _node(op: str, name: str, inputs: list[str], **attributes: Any) -> Any:
    node = node_def_pb2.NodeDef(op=op, name=name, input=inputs)
    for key, value in attributes.items():
        ((field, content),) = value.items()
        setattr(node.attr[key], field, content)
    return node


def _constant(name: str, value: Any) -> Any:
    tensor = tf.make_tensor_proto(value, tf.int32)
    node = _node("Const", name, [], dtype={"type": tf.int32.as_datatype_enum})
    node.attr["value"].tensor.CopyFrom(tensor)
    return node
