"""Parts of a step in which every worker takes its own rows for the whole batch: BatchNormalization, where that is allowed.

Such a part is a function whose name says so, and its gradient. A sum over rows is not exchanged there: a worker takes its own,
scaled up to as many rows as the batch has. What is whole within it therefore differs from worker to worker. Outside, and in
variables, it is the mean of the workers', weighted by their rows.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.division.graphs import function_graph, is_call
from fdt.division.layout import PARTIAL, WHOLE, Layout
from fdt.division.value import Value
from fdt.relaxation import BATCH_NORM, OWN_ROWS


def stands_in(value: Value, layout: Layout) -> bool:
    """Whether, within such a part, a value is given another layout without asking the other workers."""
    if not value.dtype.is_floating:
        return False
    return (value.layout == PARTIAL and value.own_rows is not None) or (value.layout == WHOLE and layout == PARTIAL)


def converted(value: Value, tensors: Sequence[tf.Tensor], rows: Sequence[int], ranks: Sequence[int]) -> Value:
    """Returns a worker's part of a sum as if it were all of it, or what it has whole as its part of the weighted mean.

    Args:
        value: Partial, or whole.
        tensors: Its tensors.
        rows: How many each worker has.
        ranks: Whose tensors they are.
    """
    total, partial = sum(rows), value.layout == PARTIAL

    def scaled(tensor: tf.Tensor, rank: int) -> tf.Tensor:
        if not rows[rank]:
            # Nothing is asked of a worker without rows; one is a number that can be divided by.
            return tf.ones_like(tensor) if partial else tf.zeros_like(tensor)
        return tensor * tf.cast(total / rows[rank] if partial else rows[rank] / total, tensor.dtype)

    parts = tuple(scaled(tensor, rank) for tensor, rank in zip(tensors, ranks, strict=True))
    return Value(WHOLE, value.source, parts, own_rows=tuple(rows)) if partial else Value(PARTIAL, value.source, parts)


def moved(graph: Any, relaxed: frozenset[str]) -> set[str]:
    """Returns the names of a graph's inputs that are variables which such parts of it assign: moving statistics."""
    found: set[str] = set()
    if BATCH_NORM not in relaxed:
        return found
    for op in graph.get_operations():
        if not is_call(op) or OWN_ROWS not in op.get_attr("f").name:
            continue
        inner = function_graph(graph, op.get_attr("f").name)
        places = {tensor.name: place for place, tensor in enumerate(inner.inputs)}
        for assigning in inner.get_operations():
            if assigning.type.startswith("Assign") and assigning.inputs[0].name in places:
                found.add(op.inputs[places[assigning.inputs[0].name]].name)
    return found
