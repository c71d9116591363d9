"""Decides which operations work on a worker's part of a variable: others get it whole.

A variable in parts must not decide how the batch is divided: a layout along features would make workers exchange activations.
So a part of state stays one where the step computes entry by entry with such parts alone, as optimizers do, or sums over them;
whatever else reads it gets it whole, once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fdt.division.conversions import MustBeWholeError
from fdt.division.kinds import BROADCASTING, UNARY
from fdt.program.graphs import Operation, is_call
from fdt.program.layout import WHOLE, Divided, Layout, Owned
from fdt.program.value import Value

if TYPE_CHECKING:
    from fdt.division.walker import Walk

BY_ENTRY = frozenset((*BROADCASTING, *UNARY)) | {
    *"Identity IdentityN StopGradient PreventGradient Snapshot Neg Conj Real Imag Cast Select ZerosLike OnesLike".split()
}
REDUCING = frozenset("Sum Mean Max Min All Any Prod EuclideanNorm L2Loss".split())
# Their rules know parts of state: see `owners.py`, `variables.py`, `control.py`, `lists.py`.
_KNOWING = frozenset(
    "If StatelessIf Case StatelessCase While StatelessWhile GatherV2 Gather ResourceGather Unique UnsortedSegmentSum "
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp FdtUpdateVariables FdtUpdateTableVariables "
    "Shape ShapeN Size Rank TensorListSetItem TensorListGetItem".split()
)
# Optimizers shape rows and ids of gradients by these.
_OF_ROWS = frozenset({"BroadcastTo", "ExpandDims", "StridedSlice"})


def is_part(layout: Layout) -> bool:
    """Whether a layout is that of a part of a variable, or of a sparse gradient for it."""
    return isinstance(layout, Owned) or (isinstance(layout, Divided) and layout.of_state)


def given(walk: "Walk", op: Operation, inputs: Sequence[Value]) -> list[Value]:
    """Returns an operation's inputs: parts of state are whole where the operation would be led astray by them."""
    for value in inputs:
        if value.places is not None and op.type != "UnsortedSegmentSum" and not is_call(op):
            raise MustBeWholeError(value)
    is_known = is_call(op) or op.type in _KNOWING or op.type.startswith(("ResourceScatter", "ResourceSparseApply"))
    if is_known or not any(is_part(value.layout) for value in inputs):
        return list(inputs)
    if op.type in _OF_ROWS and isinstance(inputs[0].layout, Owned):
        return list(inputs)
    of_batch = any(isinstance(value.layout, Divided) and not value.layout.of_state for value in inputs)
    if op.type in BY_ENTRY | REDUCING and not of_batch:
        return list(inputs)
    others = [value for value in inputs if not is_part(value.layout)]
    return [
        _whole(walk, value, others, op.name) if is_part(value.layout) and value.handle is None else value
        for value in inputs
    ]


def _whole(walk: "Walk", value: Value, others: Sequence[Value], reader: str) -> Value:
    if isinstance(value.layout, Divided):
        return walk.weights.whole(walk, value, others, reader)
    return walk.converted(value, WHOLE, reader)
