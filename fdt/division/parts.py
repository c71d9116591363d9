"""Decides which variables synchronous workers hold in parts, from a program and from sizes alone."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import tensorflow as tf

from fdt.base.held import HeldAs
from fdt.division.tables import tables
from fdt.program.layout import Divided, shares
from fdt.program.step_program import dtype_of
from fdt.v1 import program_pb2

# Smaller tables stay whole: on one machine messages cost more than updates save (5 MB with Adam: 0.85 of the rate; 13 MB: 1.3).
_MIN_TABLE_BYTES = 8 << 20
# The same for other variables, where all is held in parts.
_MIN_BYTES = 64 << 10
_UPDATED = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)


@dataclasses.dataclass(frozen=True)
class Held:
    """How much of a program's variables workers hold in parts.

    Attributes:
        variables: How many are held in parts.
        of: How many there are.
        part_bytes: Bytes of those in parts, over all workers.
        all_bytes: Bytes of all.
        worker_bytes: What one worker holds at most.
    """

    variables: int
    of: int
    part_bytes: int
    all_bytes: int
    worker_bytes: int

    def __str__(self) -> str:
        part = self.part_bytes / self.all_bytes
        return (
            f"held in parts: {self.variables} of {self.of} variables, {part:.0%} of {_readable(self.all_bytes)}: "
            f"{_readable(self.worker_bytes)} a worker"
        )


def chosen(
    source: program_pb2.StepProgram,
    num_workers: int,
    held: HeldAs,
    handles: Callable[[], Mapping[int, tf.Tensor]],
) -> dict[int, Divided]:
    """Returns the layouts of the variables that workers hold in parts, by their indices.

    Args:
        source: The program.
        num_workers: How many workers the job has.
        held: What the person asked for.
        handles: Returns the variables' handles in the step's graph, by the variables' indices.
    """
    if num_workers == 1 or held is HeldAs.WHOLE:
        return {}
    updated = [i for i, v in enumerate(source.variables) if v.role in _UPDATED and _has_parts(v, num_workers)]
    if held is HeldAs.PARTS:
        found = [i for i in updated if num_bytes(source.variables[i]) >= _MIN_BYTES]
    else:
        found = _tables(source, [i for i in updated if num_bytes(source.variables[i]) >= _MIN_TABLE_BYTES], handles)
    return {i: Divided(0, shares(source.variables[i].tensor.shape[0], num_workers), of_state=True) for i in found}


def _tables(
    source: program_pb2.StepProgram, large: list[int], handles: Callable[[], Mapping[int, tf.Tensor]]
) -> list[int]:
    """Returns tables and the optimizer's variables for them, which have the tables' shapes."""
    trained = [i for i, v in enumerate(source.variables) if v.role == program_pb2.ROLE_TRAINABLE]
    candidates = set(trained) & set(large)
    if not candidates or b"Gather" not in source.step.meta_graph:
        return []
    places = handles()
    found = tables({i: places[i] for i in candidates})
    # Whose moments are whose cannot be told apart by their shapes.
    others = {_shape(source.variables[i]) for i in trained if i not in found}
    shapes = {_shape(source.variables[i]) for i in found} - others
    return [i for i in large if _shape(source.variables[i]) in shapes]


def account(source: program_pb2.StepProgram, divided: Mapping[int, Divided]) -> Held:
    """Returns how much is held in parts, given the layouts of the variables that are."""
    sizes = [num_bytes(variable) for variable in source.variables]
    rows = {i: source.variables[i].tensor.shape[0] for i in divided}
    own = {i: sizes[i] // rows[i] * max(map(int, layout.sizes)) for i, layout in divided.items()}
    whole = sum(size for i, size in enumerate(sizes) if i not in divided)
    in_parts = sum(sizes[i] for i in divided)
    return Held(len(divided), len(sizes), in_parts, sum(sizes), whole + sum(own.values()))


def num_bytes(variable: program_pb2.Variable) -> int:
    """Returns the bytes of a whole variable; 0 if its shape is not known."""
    shape = _shape(variable)
    return math.prod(shape) * dtype_of(variable.tensor).itemsize if min((*shape, 0)) >= 0 else 0


def _has_parts(variable: program_pb2.Variable, num_workers: int) -> bool:
    shape = _shape(variable)
    is_floating = tf.as_dtype(variable.tensor.dtype).is_floating
    return bool(shape) and min(shape) > 0 and shape[0] >= num_workers and bool(is_floating)


def _shape(variable: program_pb2.Variable) -> tuple[int, ...]:
    return tuple(variable.tensor.shape)


def _readable(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
