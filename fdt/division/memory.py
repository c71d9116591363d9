"""Counts what variables take of a worker's memory, and estimates what a synchronous worker needs before its first step.

The estimate leaves out what is not known before a step has run: activations, and rows of sparse gradients. So what does not fit
by it does not fit at all; what fits may still need more, and a worker that exceeds its bound is ended with the reason.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fdt.base.memory_need import MemoryNeed
from fdt.base.worker_bounds import shown
from fdt.division.owners import TOGETHER_BYTES
from fdt.division.weights import AHEAD_BYTES
from fdt.errors import UnsupportedError
from fdt.program.layout import Divided
from fdt.program.step_program import dtype_of
from fdt.v1 import program_pb2

# A worker's process with TensorFlow and a small step: 120 to 270 MB, by how many workers share pages. The step of a model with
# many layers takes as much again (`benchmarks/results/state_memory.md`).
PROCESS_BYTES = 200 << 20


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
            f"held in parts: {self.variables} of {self.of} variables, {part:.0%} of {shown(self.all_bytes)}: "
            f"{shown(self.worker_bytes)} a worker"
        )


@dataclasses.dataclass(frozen=True)
class Need:
    """What a worker needs of memory, in bytes.

    Attributes:
        process: Its process.
        state: Variables, or its parts of them.
        step: Dense gradients, weights that are put together, and what is exchanged.
    """

    process: int
    state: int
    step: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.process + self.state + self.step

    def __str__(self) -> str:
        return (
            f"{shown(self.bytes)} ({shown(self.state)} of variables, {shown(self.step)} of gradients and copies, "
            f"{shown(self.process)} of the process)"
        )


def needed(source: program_pb2.StepProgram, divided: Mapping[int, Divided]) -> Need:
    """Returns what a worker needs, given the layouts of the variables that are held in parts."""
    dense = {g.variable for hole in source.holes for g in hole.gradients if not g.sparse}
    sizes = {i: num_bytes(source.variables[i]) for i in dense}
    # Of variables that stay whole all gradients are there before any is exchanged, and then their sums beside them.
    whole = 2 * sum(size for i, size in sizes.items() if i not in divided)
    in_parts = [size for i, size in sizes.items() if i in divided]
    own = sum(_own_bytes(source, i, layout) for i, layout in divided.items() if i in dense)
    return Need(PROCESS_BYTES, account(source, divided).worker_bytes, whole + own + _at_once(in_parts))


def _at_once(sizes: Sequence[int]) -> int:
    """Returns the bytes of weights that are put together at once, and of whole gradients and their copies in a message."""
    total, largest = sum(sizes), max(sizes, default=0)
    return min(total, 2 * AHEAD_BYTES + largest) + 3 * min(total, max(TOGETHER_BYTES, largest))


def memory_need(source: program_pb2.StepProgram, in_parts: Mapping[int, Divided]) -> MemoryNeed:
    """Returns what workers need by their number, given the layouts where two of them hold in parts whatever can be."""
    need = needed(source, in_parts)
    dense = {g.variable for hole in source.holes for g in hole.gradients if not g.sparse}
    own = sum(_own_bytes(source, i, layout) * (1 + (i in dense)) for i, layout in in_parts.items())
    shared = sum(num_bytes(source.variables[i]) * (1 + (i in dense)) for i in in_parts)
    return MemoryNeed(needed(source, {}).bytes, need.bytes - own, shared)


def too_small(need: MemoryNeed, each: Need, num_workers: int, memory_bytes: int) -> UnsupportedError:
    """Returns the error that a training does not fit into its workers' memory.

    Args:
        need: What workers need, by their number.
        each: What each worker of this job needs, as it would hold the variables.
        num_workers: How many workers the job has.
        memory_bytes: What each worker may use.
    """
    enough = need.least_workers(memory_bytes, num_workers)
    if enough is None:
        remedy = f"With no number of workers it would fit: in parts each needs at least {shown(need.fixed)}."
    elif enough == num_workers:
        remedy = (
            f"In parts each needs {shown(need.in_parts(enough))}: leave --variables whole (or --relax batch-norm) away."
        )
    else:
        least = shown(need.in_parts(enough))
        remedy = f"With --workers {enough} it fits, where each may use as much: in parts each needs {least}."
    one = "1 worker needs" if num_workers == 1 else f"each of {num_workers} workers needs"
    return UnsupportedError(
        f"The training does not fit into memory: {one} {each}, and may use {shown(memory_bytes)} (--memory, or its share of "
        f"the machine). {remedy}"
    )


def account(source: program_pb2.StepProgram, divided: Mapping[int, Divided]) -> Held:
    """Returns how much is held in parts, given the layouts of the variables that are."""
    sizes = [num_bytes(variable) for variable in source.variables]
    own = sum(_own_bytes(source, i, layout) for i, layout in divided.items())
    whole = sum(size for i, size in enumerate(sizes) if i not in divided)
    return Held(len(divided), len(sizes), sum(sizes[i] for i in divided), sum(sizes), whole + own)


def _own_bytes(source: program_pb2.StepProgram, variable: int, layout: Divided) -> int:
    """Returns the bytes of the largest part of a variable."""
    described = source.variables[variable]
    return num_bytes(described) // described.tensor.shape[0] * max(map(int, layout.sizes))


def num_bytes(variable: program_pb2.Variable) -> int:
    """Returns the bytes of a whole variable; 0 if its shape is not known."""
    shape = whole_shape(variable)
    return math.prod(shape) * dtype_of(variable.tensor).itemsize if min((*shape, 0)) >= 0 else 0


def whole_shape(variable: program_pb2.Variable) -> tuple[int, ...]:
    """Returns a variable's shape; sizes that are not known are negative."""
    return tuple(variable.tensor.shape)
