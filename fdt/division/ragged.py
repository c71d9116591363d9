"""Tracks sizes that depend on the batch's contents, such as the rows of texts that are split into words.

A `RaggedTensor` counts its rows as `Minimum(n, Maximum(n, the largest row that occurs + 1))`, which is always n.
"""

from typing import cast

import numpy as np

from fdt.division import owners
from fdt.division.walker import Node, Rule
from fdt.program.size import Dim, is_number
from fdt.program.value import Value, known

_elementwise = cast(Rule, owners.rules()["Minimum"])
_sliced = cast(Rule, owners.rules()["StridedSlice"])


def _split(node: Node) -> list[Value]:
    """StringSplitV2: indices, words, and (texts, words of the longest)."""
    outputs = node.all_whole()
    outputs[2].first = node.inputs[0].shape[0] if node.inputs[0].shape else None
    return outputs


def _first(node: Node) -> list[Value] | None:
    """StridedSlice of sizes."""
    size = node.inputs[0].first
    return _sliced(node) if size is None or not _takes_first(node) else [_scalar(node, size)]


def _largest(node: Node) -> list[Value]:
    """Maximum."""
    outputs = _elementwise(node) or node.all_whole()
    outputs[0].at_least = next((size for size in map(_constant, node.inputs) if size is not None), None)
    return outputs


def _smallest(node: Node) -> list[Value] | None:
    """Minimum."""
    for value, other in (node.inputs, node.inputs[::-1]):
        size = _constant(value)
        if size is not None and other.at_least is not None and other.at_least >= size:
            return [_scalar(node, size)]
    return _elementwise(node)


def _dense(node: Node) -> list[Value]:
    """RaggedTensorToTensor."""
    return [_with_rows(node, node.all_whole()[0])]


def _with_rows(node: Node, dense: Value) -> Value:
    """Returns a dense ragged tensor, divided again without an exchange if it has as many rows as the batch."""
    size, partition = node.constant(0), node.inputs[3]
    # -1 in the requested shape means the actual number of rows.
    if dense.shape is None or size is None or not size.shape or not is_number(size[0]) or size[0] != -1:
        return dense
    rows = _num_rows(node.attr("row_partition_types")[0], partition)
    if rows is None:
        return dense
    dense.shape = (rows, *dense.shape[1:])
    return node.in_parts(dense)


def _num_rows(kind: bytes, partition: Value) -> Dim | None:
    if kind == b"FIRST_DIM_SIZE":
        return _constant(partition)
    if kind == b"ROW_SPLITS" and partition.shape and partition.shape[0] is not None:
        return partition.shape[0] - 1
    return None


def _takes_first(node: Node) -> bool:
    begin, masks = node.constant(1), ("begin_mask", "ellipsis_mask", "new_axis_mask")
    return (
        begin is not None and [*begin] == [0] and node.attr("shrink_axis_mask") == 1 and not any(map(node.attr, masks))
    )


def _constant(value: Value) -> Dim | None:
    elements = value.elements_known
    is_one = elements is not None and elements.ndim == 0 and value.dtype.is_integer
    return cast(Dim, elements.item()) if is_one and elements is not None else None


def _scalar(node: Node, size: Dim) -> Value:
    return known(np.array(size, object), node.op.name, node.op.outputs[0].dtype)


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        "StringSplitV2": _split, "StridedSlice": _first, "Maximum": _largest, "Minimum": _smallest,
        "RaggedTensorToTensor": _dense,
    }  # fmt: skip
