"""Computes operations on constants while the step is divided: sizes, shapes and values derived from them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

from fdt.program.body import names_functions
from fdt.program.graphs import Operation, Output

# Shapes are small; larger constants are computed when the step runs.
_MAX_ELEMENTS = 4096
_NEVER = frozenset({"CheckNumerics", "Placeholder", "PlaceholderWithDefault"})


def folds(op: Operation, inputs: Sequence[np.ndarray | None]) -> bool:
    """Whether an operation's outputs can be computed now, from known inputs."""
    if not inputs or any(value is None or value.size > _MAX_ELEMENTS for value in inputs):
        return False
    definition = op_def_registry.get(op.type)
    if definition is None or definition.is_stateful or op.type in _NEVER or names_functions(op.type):
        return False
    plain = all(output.dtype not in (tf.variant, tf.resource, tf.string) for output in op.outputs)
    return plain and all(_is_small(output) for output in op.outputs)


def _is_small(output: Output) -> bool:
    return not output.is_known or math.prod(size or 0 for size in output.shape or ()) <= _MAX_ELEMENTS


def fold(op: Operation, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Computes an operation for which `folds` is true."""
    key = tuple((value.dtype, value.shape, value.tobytes()) for value in inputs)
    if key not in op.folded:
        op.folded[key] = _computed(op, inputs)
    return op.folded[key]


def _computed(op: Operation, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    with tf.init_scope(), tf.device("/cpu:0"):
        attributes: list[Any] = []
        for attribute in op_def_registry.get(op.type).attr:
            attributes += [attribute.name, _value(op, attribute)]
        outputs = execute.execute(
            op.type.encode(),
            len(op.outputs),
            [tf.constant(value) for value in inputs],
            tuple(attributes),
            context.context(),
        )
        return [np.asarray(output.numpy()) for output in outputs]


def _value(op: Operation, attribute: Any) -> Any:
    value = op.get_attr(attribute.name)
    if attribute.type == "type":
        return tf.as_dtype(value).as_datatype_enum
    if attribute.type == "list(type)":
        return [tf.as_dtype(each).as_datatype_enum for each in value]
    if attribute.type == "shape":
        return _shape(value)
    if attribute.type == "list(shape)":
        return list(map(_shape, value))
    return value


def _shape(value: Any) -> list[int | None] | None:
    shape = tf.TensorShape(value)
    return None if shape.rank is None else shape.as_list()
