"""Marks parts of a step in which each worker takes its own rows for the whole batch: BatchNormalization, if allowed.

Such a part is a function with OWN_ROWS in its name, and its gradient. A sum over rows is not exchanged there: a worker scales
the sum over its own rows up to the batch's number of rows. So whole values within the part differ from worker to worker.
Outside, and in variables, their value is the workers' mean, weighted by rows.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.base.relaxation import BATCH_NORM, OWN_ROWS
from fdt.program.graphs import called, is_call
from fdt.program.layout import PARTIAL, WHOLE, Layout
from fdt.program.value import Value


def stands_in(value: Value, layout: Layout) -> bool:
    """Whether, within such a part, a value is converted to another layout without an exchange."""
    if not value.dtype.is_floating:
        return False
    return (value.layout == PARTIAL and value.own_rows is not None) or (value.layout == WHOLE and layout == PARTIAL)


def scaled(rows: Sequence[int], is_partial: bool, rank: int, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a part of a sum scaled up to all rows, or a whole tensor scaled down to the worker's weight in the mean."""
    if not rows[rank]:
        # The result of a worker without rows has weight 0; ones avoid a division by zero.
        return tf.ones_like(tensor) if is_partial else tf.zeros_like(tensor)
    total = sum(rows)
    return tensor * tf.cast(total / rows[rank] if is_partial else rows[rank] / total, tensor.dtype)


def moved(graph: Any, relaxed: frozenset[str]) -> set[str]:
    """Returns the names of a graph's inputs that are variables assigned in such parts: moving statistics."""
    found: set[str] = set()
    if BATCH_NORM not in relaxed:
        return found
    for op in graph.get_operations():
        if not is_call(op) or OWN_ROWS not in op.get_attr("f").name:
            continue
        (inner,) = called(op)
        places = {tensor.name: place for place, tensor in enumerate(inner.inputs)}
        for assigning in inner.get_operations():
            if assigning.type.startswith("Assign") and assigning.inputs[0].name in places:
                found.add(op.inputs[places[assigning.inputs[0].name]].name)
    return found
