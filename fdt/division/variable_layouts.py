"""Decides which variables synchronous workers hold in parts, from a program, sizes, and the memory of a worker."""

from collections.abc import Callable, Collection, Mapping

import tensorflow as tf

from fdt.base.held import HeldAs
from fdt.base.memory_need import MemoryNeed
from fdt.division import memory
from fdt.division.memory import num_bytes, whole_shape
from fdt.division.tables import tables
from fdt.program.layout import Divided, shares
from fdt.v1 import program_pb2

# Smaller tables stay whole: on one machine messages cost more than updates save (5 MB with Adam: 0.85 of the rate; 13 MB: 1.3).
MIN_TABLE_BYTES = 8 << 20
# The same for other variables, where all is held in parts.
_MIN_BYTES = 64 << 10
_UPDATED = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)


def chosen(
    source: program_pb2.StepProgram,
    num_workers: int,
    held: HeldAs,
    handles: Callable[[], Mapping[int, tf.Tensor]],
    memory_bytes: int | None = None,
) -> dict[int, Divided]:
    """Returns the layouts of the variables that workers hold in parts, by their indices.

    Args:
        source: The program.
        num_workers: How many workers the job has.
        held: What the person asked for.
        handles: Returns the variables' handles in the step's graph, by the variables' indices.
        memory_bytes: What each worker may use of memory; None if that is not known, and anything fits.

    Raises:
        UnsupportedError: It does not fit.
    """
    if num_workers == 1 or held is HeldAs.WHOLE:
        found: dict[int, Divided] = {}
    elif held is HeldAs.PARTS:
        found = everything(source, num_workers)
    else:
        large = _updated(source, num_workers, MIN_TABLE_BYTES)
        found = _layouts(source, _tables(source, large, handles), num_workers)
    if memory_bytes is None or memory.needed(source, found).bytes <= memory_bytes:
        return found
    in_parts = found if held is HeldAs.WHOLE else everything(source, num_workers)
    each = memory.needed(source, in_parts)
    if each.bytes > memory_bytes:
        raise memory.too_small(need_of(source), each, num_workers, memory_bytes)
    return in_parts


def need_of(source: program_pb2.StepProgram) -> MemoryNeed:
    """Returns what workers need of memory for a program, by their number."""
    return memory.memory_need(source, everything(source, 2))


def everything(source: program_pb2.StepProgram, num_workers: int) -> dict[int, Divided]:
    """Returns the layouts where whatever is updated and large enough is held in parts."""
    if num_workers == 1:
        return {}
    return _layouts(source, _updated(source, num_workers, _MIN_BYTES), num_workers)


def _layouts(source: program_pb2.StepProgram, indices: Collection[int], num_workers: int) -> dict[int, Divided]:
    rows = {i: source.variables[i].tensor.shape[0] for i in indices}
    return {i: Divided(0, shares(rows[i], num_workers), of_state=True) for i in indices}


def _updated(source: program_pb2.StepProgram, num_workers: int, least_bytes: int) -> list[int]:
    return [
        i
        for i, variable in enumerate(source.variables)
        if variable.role in _UPDATED and num_bytes(variable) >= least_bytes and _has_parts(variable, num_workers)
    ]


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
    others = {whole_shape(source.variables[i]) for i in trained if i not in found}
    shapes = {whole_shape(source.variables[i]) for i in found} - others
    return [i for i in large if whole_shape(source.variables[i]) in shapes]


def _has_parts(variable: program_pb2.Variable, num_workers: int) -> bool:
    shape = whole_shape(variable)
    is_floating = tf.as_dtype(variable.tensor.dtype).is_floating
    return bool(shape) and min(shape) > 0 and shape[0] >= num_workers and bool(is_floating)
