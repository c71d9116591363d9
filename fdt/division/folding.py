"""Operations on constants, computed while the step is divided: sizes, shapes and what is worked out from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

# Shapes are small; what is larger is computed when the step runs.
_MAX_ELEMENTS = 4096
_NEVER = frozenset({"CheckNumerics", "Placeholder", "PlaceholderWithDefault"})


def folds(op: Any, inputs: Sequence[np.ndarray | None]) -> bool:
    """Whether an operation's outputs follow from what is known now."""
    if not inputs or any(value is None or value.size > _MAX_ELEMENTS for value in inputs):
        return False
    definition = op_def_registry.get(op.type)
    if definition is None or definition.is_stateful or op.type in _NEVER:
        return False
    if any(attribute.HasField("func") or attribute.list.func for attribute in op.node_def.attr.values()):
        return False
    plain = all(output.dtype not in (tf.variant, tf.resource, tf.string) for output in op.outputs)
    return plain and all(_is_small(output) for output in op.outputs)


def _is_small(output: Any) -> bool:
    count = output.shape.num_elements()
    return count is None or count <= _MAX_ELEMENTS


def fold(op: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Computes an operation; `folds` has said that it can be."""
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


def _value(op: Any, attribute: Any) -> Any:
    value = op.get_attr(attribute.name)
    if attribute.type == "type":
        return tf.as_dtype(value).as_datatype_enum
    if attribute.type == "list(type)":
        return [tf.as_dtype(each).as_datatype_enum for each in value]
    return value
