"""Where each parameter lives: which parameter server, and which place in its vectors."""

import dataclasses
import math
from collections.abc import Sequence

from fdt.errors import UsageError
from fdt.program import dtype_of
from fdt.v1 import program_pb2
from nfdt.cut import Cut
from nfdt.units import Unit, Units

# Slices of a vector that start at such a boundary are views, not copies.
_ALIGNMENT_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor's place in a vector.

    Attributes:
        variable: Index of the parameter.
        gradient: Index into Cut.gradients.
        slots: Its optimizer state, in the order of the vector's own slots; empty in a vector without.
        length: Entries that it takes.
        padded: The same, rounded up so that the next one is aligned.
    """

    variable: int
    gradient: int
    slots: tuple[int, ...]
    shape: tuple[int, ...]
    length: int
    padded: int


@dataclasses.dataclass(frozen=True)
class Vector:
    """Parameters of one type, one after the other, pulled and pushed as one tensor.

    Attributes:
        fused: Whether they are updated as one long parameter; else each by itself.
    """

    dtype: str
    fused: bool
    entries: tuple[Entry, ...]

    @property
    def length(self) -> int:
        """Entries in all, padding included."""
        return sum(entry.padded for entry in self.entries)


@dataclasses.dataclass(frozen=True)
class Table:
    """A parameter that is pulled by itself: its gradient comes as rows, or (None) not at all.

    Attributes:
        slots: Its optimizer state, if no other parameter's update looks at it or at the gradient.
        writers: The operations of the update that write the two; none if others' updates look at them.
    """

    variable: int
    gradient: int | None
    shape: tuple[int, ...]
    dtype: str
    slots: tuple[int, ...] = ()
    writers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ShardLayout:
    """What one parameter server holds.

    Attributes:
        loose: Parameters and state that are kept one by one.
        writers: The operations of the update that run here, unit by unit; of a fused vector those of its first entry.
        shared_writers: Those that update what every shard keeps.
    """

    vectors: tuple[Vector, ...]
    tables: tuple[Table, ...]
    loose: tuple[int, ...]
    writers: tuple[tuple[str, ...], ...]
    shared_writers: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Every variable of the optimizer and every parameter, once.

    Attributes:
        shared: Optimizer variables that every shard keeps, and updates alike.
        still: Parameters and optimizer variables that no step changes.
    """

    shards: tuple[ShardLayout, ...]
    shared: tuple[int, ...]
    still: tuple[int, ...]


def lay_out(source: program_pb2.StepProgram, cut: Cut, units: Units, num_shards: int, fuse: bool = True) -> Layout:
    """Distributes units over shards, the largest first, each to the shard that holds least.

    Args:
        source: The program.
        cut: Its two parts.
        units: What has to be kept together.
        num_shards: How many shards; there are fewer if there are fewer units.
        fuse: Whether parameters that are updated alike are updated as one. In a vector an entry may be rounded by another
            kernel than at the end of a small tensor, so the last bit may differ.

    Raises:
        UsageError: More shards than tensors.
    """
    num_tensors = sum(len(unit.parameters) for unit in units.units)
    if num_shards > num_tensors:
        raise UsageError(
            f"A model with {num_tensors} tensors that train cannot be spread over {num_shards} parameter servers. "
            f"Choose --ps {num_tensors} or less."
        )
    sizes = [_num_bytes(source, unit) for unit in units.units]
    loads = [0] * num_shards
    parts: list[list[int]] = [[] for _ in range(num_shards)]
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = min(range(num_shards), key=lambda k: (loads[k], k))
        loads[lightest] += sizes[i]
        parts[lightest].append(i)
    shards = [
        _shard(source, cut, [units.units[i] for i in sorted(part)], units.shared_writers, fuse)
        for part in parts
        if part
    ]
    known = {v for unit in units.units for v in (*unit.parameters, *unit.slots)} | set(units.shared)
    roles = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)
    still = [i for i, v in enumerate(source.variables) if v.role in roles and i not in known]
    return Layout(tuple(shards), units.shared, tuple(still))


def _num_bytes(source: program_pb2.StepProgram, unit: Unit) -> int:
    specs = [source.variables[v].tensor for v in unit.parameters]
    return sum(math.prod(spec.shape) * dtype_of(spec).itemsize for spec in specs)


def _shard(
    source: program_pb2.StepProgram, cut: Cut, units: Sequence[Unit], shared_writers: Sequence[str], fuse: bool
) -> ShardLayout:
    fused: dict[tuple[str, str], list[Unit]] = {}
    loose: list[Unit] = []
    # What the computation reads (a teacher that follows the weights) has to be a variable of its own.
    read = set(cut.optimizer_reads)
    for unit in units:
        if unit.signature is None or not fuse or read & set(unit.slots):
            loose.append(unit)
        else:
            fused.setdefault((unit.signature, source.variables[unit.parameters[0]].tensor.dtype), []).append(unit)
    vectors: list[Vector] = []
    writers: list[tuple[str, ...]] = []
    for (_, dtype), alike in fused.items():
        entries = [_entry(source, unit.parameters[0], unit.gradients[0], unit.slots) for unit in alike]
        vectors.append(Vector(dtype, True, tuple(entries)))
        writers.append(alike[0].writers)
    apart: dict[str, list[Entry]] = {}
    tables: list[Table] = []
    for unit in loose:
        writers.append(unit.writers)
        for number in unit.gradients:
            gradient = cut.gradients[number]
            spec = source.variables[gradient.variable].tensor
            if gradient.sparse:
                alone = (unit.slots, unit.writers) if unit.parameters == (gradient.variable,) else ()
                tables.append(Table(gradient.variable, number, tuple(spec.shape), spec.dtype, *alone))
            else:
                apart.setdefault(spec.dtype, []).append(_entry(source, gradient.variable, number, ()))
        covered = {cut.gradients[number].variable for number in unit.gradients}
        for variable in unit.parameters:
            if variable not in covered:
                spec = source.variables[variable].tensor
                tables.append(Table(variable, None, tuple(spec.shape), spec.dtype))
    vectors += [Vector(dtype, False, tuple(entries)) for dtype, entries in apart.items()]
    kept = [v for unit in loose for v in (*unit.parameters, *unit.slots)]
    return ShardLayout(tuple(vectors), tuple(tables), tuple(dict.fromkeys(kept)), tuple(writers), tuple(shared_writers))


def _entry(source: program_pb2.StepProgram, variable: int, gradient: int, slots: tuple[int, ...]) -> Entry:
    spec = source.variables[variable].tensor
    length, step = math.prod(spec.shape), max(1, _ALIGNMENT_BYTES // dtype_of(spec).itemsize)
    return Entry(variable, gradient, slots, tuple(spec.shape), length, -(-length // step) * step)
