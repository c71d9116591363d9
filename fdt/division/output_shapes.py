"""Infers the shapes of an operation's outputs where they differ from batch to batch (see `fdt/program/size.py`).

TensorFlow infers shapes for the batch with which the step is divided. `shape_rules.py` says how an output's dimensions follow
from its inputs'. An operation without a rule gets numbers for sizes, which makes them conditions.
"""

from typing import TYPE_CHECKING

from fdt.division.shape_rules import RULES
from fdt.program.body import names_functions
from fdt.program.size import Size, value_of
from fdt.program.value import Shape, Value

if TYPE_CHECKING:
    from fdt.division.walker import Node


def varies(value: Value) -> bool:
    """Whether a value's shape or elements are other ones for other batches, and it is known how."""
    return value.sizes is not None or any(isinstance(size, Size) for size in value.shape or ())


def shapes(node: "Node") -> list[Shape]:
    """Returns the shapes of an operation's outputs."""
    outputs = node.op.outputs
    inferred = [output.shape for output in outputs]
    if node.walk.conditions is None or not outputs or names_functions(node.op.type):
        return inferred
    if not any(varies(value) or value.is_of_sizes for value in node.inputs):
        return inferred
    of = RULES.get(node.op.type)
    found = of(node) if of is not None else None
    if found is None:
        return [_unknown(shape) for shape in inferred] if _of_sizes(node) else _fixed(node, inferred)
    each: list[Shape] = found if isinstance(found, list) else [found] * len(outputs)
    return each if all(map(_agree, each, inferred)) else _fixed(node, inferred)


def _of_sizes(node: "Node") -> bool:
    """Whether integers that other batches have otherwise, in an unknown way, may decide the shapes of outputs."""
    return any(value.is_of_sizes and value.dtype.is_integer for value in node.inputs)


def _unknown(shape: Shape) -> Shape:
    return shape and (None,) * len(shape)


def _fixed(node: "Node", inferred: list[Shape]) -> list[Shape]:
    """Makes the sizes of an operation's inputs conditions, so that the shapes inferred from them hold."""
    for value in node.inputs:
        for size in [*(value.shape or ()), *(value.sizes.flat if value.sizes is not None else ())]:
            if isinstance(size, Size):
                int(size)
    return inferred


def _agree(found: Shape, inferred: Shape) -> bool:
    """Whether a shape agrees with the one that TensorFlow inferred for the batch at hand, in all known dimensions."""
    if found is None or inferred is None:
        return True
    pairs = [(value_of(one), other) for one, other in zip(found, inferred, strict=False)]
    return len(found) == len(inferred) and all(None in pair or pair[0] == pair[1] for pair in pairs)
