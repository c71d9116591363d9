"""Carries what Keras attaches to tensors through a step: masks, and the logits of probabilities.

A loss that finds the logits of its probabilities computes with the logits, unclipped. A step takes and returns a tensor
together with what is attached to it.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from fdt.capture.loop.elements import ElementTensor
from fdt.capture.loop.pending import PendingTensor, resolved
from fdt.capture.step.conversion import ATTACHED


def attached(tensor: Any) -> dict[str, Any]:
    """Returns the tensors attached to a tensor, by attribute name; {} for any other value."""
    if not tf.is_tensor(tensor) or isinstance(tensor, tf.Variable | ElementTensor):
        return {}
    found = {name: getattr(resolved(tensor), name, None) for name in ATTACHED}
    return {name: value for name, value in found.items() if tf.is_tensor(value)}


def attach(tensor: Any, others: Mapping[str, Any]) -> Any:
    """Attaches tensors to a tensor that may be pending, without waiting for it; returns it."""
    if not isinstance(tensor, PendingTensor):
        for name, other in others.items():
            setattr(tensor, name, other)
        return tensor
    return PendingTensor(tensor.dtype, tensor._fdt_shape, lambda: attach(resolved(tensor), _resolved(others)))


def _resolved(others: Mapping[str, Any]) -> dict[str, Any]:
    return {name: resolved(other) for name, other in others.items()}
