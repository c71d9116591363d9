"""How much an operation computes, so that a report can tell which part of a step is divided."""

import math
from typing import Any

from tensorflow.python.framework import ops

# Their kernels do as much as the forward operation whose gradient they are; the input that is as large as its output there.
_OF_CONVOLUTIONS = {
    "Conv3DBackpropInputV2": 2,
    "Conv3DBackpropFilterV2": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
}


# What makes up the time of a network. Of an optimizer, which all workers run alike, nothing is counted.
_MULTIPLYING = ("MatMul", "Conv2D", "Conv3D", "DepthwiseConv2dNative")


def counts(kind: str) -> bool:
    """Whether `flops` counts operations of a kind."""
    return kind in _OF_CONVOLUTIONS or kind == "Einsum" or any(name in kind for name in _MULTIPLYING)


def flops(op: Any) -> int:
    """Returns the multiplications and additions of a product of matrices or a convolution; 0 of other operations.

    TensorFlow's own figures where it has them; 0 also where shapes are not known.
    """
    if op.type in _OF_CONVOLUTIONS:
        return _convolution(op)
    if op.type == "Einsum":
        return _einsum(op)
    if not counts(op.type):
        return 0
    try:
        return int(ops.get_stats_for_node_def(op.graph, op.node_def, "flops").value or 0)
    except (ValueError, TypeError, AttributeError):
        return 0


def _convolution(op: Any) -> int:
    """Returns 2 · entries of the forward output · entries of a filter, its last dimension left out."""
    forward = op.inputs[_OF_CONVOLUTIONS[op.type]].shape
    weights = op.inputs[1].shape if "BackpropInput" in op.type else op.outputs[0].shape
    if not (forward.is_fully_defined() and weights.is_fully_defined()):
        return 0
    window = math.prod(weights.as_list()[:-1])
    if op.type.startswith("Depthwise"):
        # Each channel for itself.
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
