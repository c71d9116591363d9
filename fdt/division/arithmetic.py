"""Counts an operation's arithmetic, so that a report can tell which part of a step is divided."""

import math
from typing import Any

from tensorflow.python.framework import ops
from tensorflow.python.util import deprecation

# These gradients cost as much as the forward operation; the value is the index of the input as large as its output.
_OF_CONVOLUTIONS = {
    "Conv3DBackpropInputV2": 2,
    "Conv3DBackpropFilterV2": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
}


# The operations that dominate a network's time. An optimizer, which every worker runs in full, is not counted.
_MULTIPLYING = ("MatMul", "Conv2D", "Conv3D", "DepthwiseConv2dNative")


def counts(kind: str) -> bool:
    """Whether `flops` counts operations of a kind."""
    return kind in _OF_CONVOLUTIONS or kind == "Einsum" or any(name in kind for name in _MULTIPLYING)


def flops(op: Any, rows: int = 1) -> int:
    """Returns the multiplications and additions of a matrix product or a convolution; 0 for other operations.

    Uses TensorFlow's own counts where it has them.

    Args:
        op: The operation.
        rows: The value for a size of a product that is known only at run time, which is mostly the batch's.
    """
    if op.type in _OF_CONVOLUTIONS:
        return _convolution(op)
    if op.type == "Einsum":
        return _einsum(op)
    if not counts(op.type):
        return 0
    try:
        # TensorFlow's own table of counts calls a function that TensorFlow has deprecated.
        with deprecation.silence():
            counted = int(ops.get_stats_for_node_def(op.graph, op.node_def, "flops").value or 0)
    except (ValueError, TypeError, AttributeError):
        counted = 0
    return counted or (_product(op, rows) if "MatMul" in op.type else 0)


def _product(op: Any, rows: int) -> int:
    """Returns 2 · entries of the product · the size of the dimension summed over."""
    result, left = ([rows] * 2 if t.shape.rank is None else t.shape.as_list() for t in (op.outputs[0], op.inputs[0]))
    is_turned = any(name in op.node_def.attr and op.get_attr(name) for name in ("transpose_a", "adj_x"))
    sizes = [*result, left[-2 if is_turned and len(left) > 1 else -1] if left else 1]
    return 2 * math.prod(rows if size is None else size for size in sizes)


def _convolution(op: Any) -> int:
    """Returns 2 · entries of the forward output · entries of a filter without its last dimension."""
    forward = op.inputs[_OF_CONVOLUTIONS[op.type]].shape
    weights = op.inputs[1].shape if "BackpropInput" in op.type else op.outputs[0].shape
    if not (forward.is_fully_defined() and weights.is_fully_defined()):
        return 0
    window = math.prod(weights.as_list()[:-1])
    if op.type.startswith("Depthwise"):
        # Each channel is convolved by itself.
        window //= max(1, weights[-2])
    return 2 * int(forward.num_elements()) * window


def _einsum(op: Any) -> int:
    """Returns 2 · the product of the sizes of all letters (1 · for a single input)."""
    left = op.get_attr("equation").decode().partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(left, op.inputs, strict=True):
        if "." in letters or tensor.shape.rank != len(letters):
            return 0
        sizes.update(zip(letters, (size or 0 for size in tensor.shape.as_list()), strict=True))
    return len(left) * math.prod(sizes.values())
