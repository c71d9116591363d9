"""Finds a step's tables: variables of which it looks rows up and reads nothing else, but what their own updates read.

Everything that is computed of a variable entry by entry counts as the variable, so that a table which is cast before rows are
looked up is one, and a table that is tied to an output layer is none.

`fdt.program.table_lookups` asks another question, for asynchronous workers: which rows a step needs, before it runs. There row
numbers must not depend on parameters, and the update is the servers'. Here the step updates its part of the table, which is a
use of the table too; and ids may come from anywhere, from functions that are not inlined as well.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from fdt.division.state import BY_ENTRY, REDUCING
from fdt.program.graphs import called, is_call

_LOOKUPS = frozenset({"GatherV2", "Gather", "ResourceGather"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_LOOPS = frozenset({"While", "StatelessWhile"})
# What a step may do besides: look at shapes, sum up, and change rows or all of it.
_HARMLESS = REDUCING | {
    *"Shape ShapeN Size Rank VariableShape UnsortedSegmentSum".split(),
    *"AssignVariableOp AssignAddVariableOp AssignSubVariableOp FdtUpdateVariables FdtUpdateTableVariables".split(),
}
_BY_ROWS = ("ResourceScatter", "ResourceSparseApply")


def tables(handles: Mapping[int, tf.Tensor]) -> set[int]:
    """Returns which of some variables are tables, given their handles in the step's graph."""
    return {number for number, handle in handles.items() if _Uses().are_lookups(handle)}


class _Uses:
    """What a step does with one variable."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, str]] = set()
        self._bodies: dict[tuple[int, str], list[Any]] = {}
        self._num_lookups = 0

    def are_lookups(self, handle: tf.Tensor) -> bool:
        """Whether the variable is read only by row lookups."""
        return self._allows(handle, ()) and self._num_lookups > 0

    def _allows(self, tensor: tf.Tensor, calls: tuple[Any, ...]) -> bool:
        """Whether what a tensor is used for is allowed; in functions, the calls that lead there tell where outputs go."""
        key = id(tensor.graph), tensor.name
        if key in self._seen:
            return True
        self._seen.add(key)
        inside = all(
            self._goes_on(op, place, calls)
            for op in tensor.consumers()
            for place, given in enumerate(op.inputs)
            if given.name == tensor.name
        )
        return inside and all(
            self._allows(calls[-1].outputs[place], calls[:-1])
            for place, output in enumerate(tensor.graph.outputs if calls else ())
            if output.name == tensor.name and tensor.dtype != tf.resource
        )

    def _goes_on(self, op: Any, place: int, calls: tuple[Any, ...]) -> bool:
        if op.type in _LOOKUPS:
            self._num_lookups += place == 0
            return place == 0
        if op.type in _HARMLESS or op.type.startswith(_BY_ROWS):
            return True
        if op.type in BY_ENTRY | {"ReadVariableOp"}:
            return all(self._allows(output, calls) for output in op.outputs)
        if is_call(op) or op.type in _BRANCHES:
            first = 0 if is_call(op) else 1
            return all(self._allows(body.inputs[place - first], (*calls, op)) for body in self._called(op))
        # A loop's variables keep their places, also when it returns.
        is_handle = op.inputs[place].dtype == tf.resource
        bodies = self._called(op) if op.type in _LOOPS and is_handle else []
        return bool(bodies) and all(self._allows(body.inputs[place], (*calls, op)) for body in bodies)

    def _called(self, op: Any) -> list[Any]:
        key = id(op.graph), op.name
        if key not in self._bodies:
            self._bodies[key] = called(op)
        return self._bodies[key]
