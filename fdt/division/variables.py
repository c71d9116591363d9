"""Rules for variables that workers hold in part.

Adding to a sum needs no exchange until its value is read. Of a divided variable each worker reads and assigns its own part.
"""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from fdt.division.walker import Node
from fdt.program.layout import PARTIAL, WHOLE, Divided, Partial
from fdt.program.value import Value


def read(node: Node) -> list[Value] | None:
    """ReadVariableOp."""
    (layout,) = node.layouts
    if isinstance(layout, Divided):
        return [node.value(layout, [node.emit([handle])[0] for handle in node.own(0)])]
    return node.run([node.own(0)], PARTIAL) if isinstance(layout, Partial) else None


def written(node: Node) -> list[Value] | None:
    """AssignVariableOp, AssignAddVariableOp, AssignSubVariableOp: only one worker adds a whole value to a sum."""
    layout = node.layouts[0]
    if layout == WHOLE:
        return None
    runs = zip(node.own(0), node.local(1, layout), strict=True)
    for handle, value in runs:
        node.emit([handle, value])
    return []


def updated(node: Node) -> list[Value] | None:
    """FdtUpdateVariables: each worker updates its part of a parameter, and of what the optimizer keeps of it."""
    handles = [place for place, value in enumerate(node.inputs) if value.handle is not None]
    layout, num_gradients = node.layouts[handles[0]], node.attr("N")
    if not isinstance(layout, Divided) or any(node.layouts[place] != layout for place in handles):
        return None
    given = [
        node.own(place)
        if place in handles
        else node.local(place, layout)
        if place < num_gradients
        else node.whole(place)
        for place in range(len(node.inputs))
    ]
    for place in range(node.num_local):
        node.emit([each[place] for each in given])
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
        "FdtUpdateVariables": updated,
        **dict.fromkeys(("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"), written),
    }
