"""Rules for variables that workers hold in part: adding to them needs no exchange until their value is read."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from fdt.division.walker import Node
from fdt.program.layout import PARTIAL, Partial
from fdt.program.value import Value


def read(node: Node) -> list[Value] | None:
    """ReadVariableOp."""
    return node.run([node.own(0)], PARTIAL) if isinstance(node.layouts[0], Partial) else None


def written(node: Node) -> list[Value] | None:
    """AssignVariableOp, AssignAddVariableOp, AssignSubVariableOp: only one worker adds a whole value."""
    if not isinstance(node.layouts[0], Partial):
        return None
    runs = zip(node.own(0), node.local(1, PARTIAL), strict=True)
    for handle, value in runs:
        node.emit([handle, value])
    return []


def shape(node: Node) -> list[Value] | None:
    """VariableShape: known while the step is divided, if no assignment may change it."""
    described = handle_data_util.get_resource_handle_data(node.inputs[0].handle).shape_and_type
    known = tf.TensorShape(described[0].shape) if described else tf.TensorShape(None)
    if not known.is_fully_defined():
        return None
    return node.known([np.array(known.as_list(), node.op.outputs[0].dtype.as_numpy_dtype)])


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        "ReadVariableOp": read,
        "VariableShape": shape,
        **dict.fromkeys(("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"), written),
    }
