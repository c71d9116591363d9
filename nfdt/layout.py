"""Assigns each parameter to a parameter server, and to a position in its vectors; cuts large ones over several servers."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from fdt.base.sharding import LEAST_PART_BYTES, deal, fill, is_cut_by_rows, is_even, loads_of
from fdt.errors import UsageError
from fdt.program.layout import shares
from fdt.program.step_program import dtype_of
from fdt.program.update.cut import Cut
from fdt.program.update.parameter_groups import ParameterGroup, ParameterGroups
from fdt.v1 import program_pb2

# TensorFlow makes slices that start at such a boundary views, not copies.
_ALIGNMENT_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """The place of a tensor, or of a part of a cut tensor, in a vector.

    Attributes:
        variable: Index of the parameter.
        gradient: Index into Cut.gradients.
        slots: Its optimizer state, in the order of the vector's slots; empty if the vector is not fused.
        shape: The whole tensor's shape.
        start: Index of its first element here, row by row.
        length: How many of its elements are here.
        padded: `length` rounded up so that the next entry is aligned.
    """

    variable: int
    gradient: int
    slots: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    length: int
    padded: int

    @property
    def is_whole(self) -> bool:
        """Whether all of the tensor is here."""
        return self.length == math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Vector:
    """Parameters of one type, one after the other, pulled and pushed as one tensor.

    Attributes:
        fused: Whether they are updated as one long parameter, not one by one.
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
    """A parameter that is pulled by itself, since its gradient is sparse or it has none (`gradient` is None).

    Attributes:
        shape: Of what is here: all of the table, or some of its rows.
        slots: Its optimizer state; empty if another parameter's update reads this parameter's state or gradient.
        writers: The operations of the update that write parameter and state; empty in the same case.
        start: The first of its rows here.
        is_whole: Whether all of its rows are here; otherwise each of its slots has the same rows here.
        shape_constants: Of a table that is not whole, the constants of the update that hold its shape.
    """

    variable: int
    gradient: int | None
    shape: tuple[int, ...]
    dtype: str
    slots: tuple[int, ...] = ()
    writers: tuple[str, ...] = ()
    start: int = 0
    is_whole: bool = True
    shape_constants: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ShardLayout:
    """What one parameter server holds.

    Attributes:
        loose: Parameters and optimizer variables that are not in a fused vector.
        writers: The update's operations that run here, by parameter group; for a fused vector those of its first entry.
        shared_writers: The operations that update the variables that every shard keeps.
    """

    vectors: tuple[Vector, ...]
    tables: tuple[Table, ...]
    loose: tuple[int, ...]
    writers: tuple[tuple[str, ...], ...]
    shared_writers: tuple[str, ...]

    @property
    def spans(self) -> dict[int, tuple[int, int]]:
        """Of variables with some of their rows here, by their indices, the first of these and how many they are."""
        parts = (table for table in self.tables if not table.is_whole)
        return {i: (part.start, part.shape[0]) for part in parts for i in (part.variable, *part.slots)}


@dataclasses.dataclass(frozen=True)
class Layout:
    """The place of every parameter and optimizer variable; a cut one has parts on several shards.

    Attributes:
        shared: Optimizer variables that every shard keeps and updates in the same way.
        still: Parameters and optimizer variables that no step changes.
    """

    shards: tuple[ShardLayout, ...]
    shared: tuple[int, ...]
    still: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A parameter group on a shard, or, of its only parameter, `length` elements (fused) or rows (a table)."""

    unit: ParameterGroup
    is_fused: bool
    start: int = 0
    length: int | None = None


def lay_out(
    source: program_pb2.StepProgram,
    cut: Cut,
    units: ParameterGroups,
    num_shards: int,
    fuse: bool = True,
    by_rows: Collection[int] = (),
) -> Layout:
    """Distributes parameter groups over shards: the largest first, each to the shard that holds least.

    If a shard would have much more than its share, the parameters with elementwise updates are cut instead, one after the
    other, so that all shards hold the same number of bytes (decision 0077). Of a large table that goes by rows, and whose
    update treats each row by itself, every shard holds as many rows (docs/decisions/0120).

    Args:
        source: The program.
        cut: Its two parts.
        units: The parameter groups.
        num_shards: How many shards.
        fuse: Whether parameters with the same update are updated as one vector. Another kernel may then round an entry than
            at the end of a small tensor, so the last bit may differ.
        by_rows: The tables of which workers get rows.

    Raises:
        UsageError: There are more shards than tensors, and cutting does not fill them.
    """
    # Optimizer state that the computation reads (a teacher that follows the weights) must be a variable of its own.
    read = set(cut.optimizer_reads)
    fused = [fuse and unit.signature is not None and not read & set(unit.slots) for unit in units.units]
    pieces = [_Piece(*of_unit) for of_unit in zip(units.units, fused, strict=True)]
    tables = [piece for piece in pieces if _is_cut_by_rows(source, piece.unit, num_shards, by_rows)]
    parts = _place(source, [piece for piece in pieces if piece not in tables], num_shards)
    for piece in tables:
        _place_rows(source, piece, parts)
    num_tensors = sum(len(unit.parameters) for unit in units.units)
    if num_shards > num_tensors and not all(parts):
        raise UsageError(
            f"A model with {num_tensors} tensors that train cannot be spread over {num_shards} parameter servers. "
            f"Choose --ps {num_tensors} or less."
        )
    shards = [_shard(source, cut, part, units.shared_writers) for part in parts if part]
    known = {v for unit in units.units for v in (*unit.parameters, *unit.slots)} | set(units.shared)
    roles = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)
    still = [i for i, v in enumerate(source.variables) if v.role in roles and i not in known]
    return Layout(tuple(shards), units.shared, tuple(still))


def _is_cut_by_rows(
    source: program_pb2.StepProgram, unit: ParameterGroup, num_shards: int, by_rows: Collection[int]
) -> bool:
    if unit.by_row is None or unit.parameters[0] not in by_rows:
        return False
    return is_cut_by_rows(_num_bytes(source, unit), LEAST_PART_BYTES[unit.by_row.writes_all], num_shards)


def _place_rows(source: program_pb2.StepProgram, piece: _Piece, parts: Sequence[list[_Piece]]) -> None:
    """Adds a table's rows to all shards, as many to each."""
    start = 0
    for part, count in zip(
        parts, shares(source.variables[piece.unit.parameters[0]].tensor.shape[0], len(parts)), strict=True
    ):
        part.append(dataclasses.replace(piece, start=start, length=count))
        start += count


def _place(source: program_pb2.StepProgram, units: Sequence[_Piece], num_shards: int) -> list[list[_Piece]]:
    sizes = [_num_bytes(source, piece.unit) for piece in units]
    dealt = deal(sizes, num_shards)
    if is_even(loads_of(sizes, dealt)):
        return [[units[i] for i in part] for part in dealt]
    whole = [i for i, piece in enumerate(units) if not piece.is_fused]
    kept = [[whole[i] for i in part] for part in deal([sizes[i] for i in whole], num_shards)]
    parts = [[units[i] for i in part] for part in kept]
    rest = [i for i, piece in enumerate(units) if piece.is_fused]
    room = fill(loads_of(sizes, kept), sum(sizes[i] for i in rest))
    shard = 0
    for piece in (units[i] for i in rest):
        (variable,), start = piece.unit.parameters, 0
        left, step = math.prod(source.variables[variable].tensor.shape), _step(source, variable)
        if not left:
            # A tensor without entries.
            parts[shard].append(piece)
        while left:
            # The last shard takes the remainder of rounding.
            is_last = shard == num_shards - 1
            number = left if is_last else min(left, round(room[shard] / _ALIGNMENT_BYTES) * step)
            if number:
                parts[shard].append(dataclasses.replace(piece, start=start, length=number))
                room[shard] -= number / step * _ALIGNMENT_BYTES
                start, left = start + number, left - number
            if left:
                shard += 1
    return parts


def _num_bytes(source: program_pb2.StepProgram, unit: ParameterGroup) -> int:
    specs = [source.variables[v].tensor for v in unit.parameters]
    return sum(math.prod(spec.shape) * dtype_of(spec).itemsize for spec in specs)


def _step(source: program_pb2.StepProgram, variable: int) -> int:
    """Returns the alignment, in elements, of slices of a parameter or of a vector of its type."""
    return max(1, _ALIGNMENT_BYTES // dtype_of(source.variables[variable].tensor).itemsize)


def _shard(
    source: program_pb2.StepProgram, cut: Cut, pieces: Sequence[_Piece], shared_writers: Sequence[str]
) -> ShardLayout:
    fused: dict[tuple[str | None, str], list[_Piece]] = {}
    for piece in (piece for piece in pieces if piece.is_fused):
        dtype = source.variables[piece.unit.parameters[0]].tensor.dtype
        fused.setdefault((piece.unit.signature, dtype), []).append(piece)
    loose = [piece for piece in pieces if not piece.is_fused]
    vectors: list[Vector] = []
    writers: list[tuple[str, ...]] = []
    for (_, dtype), alike in fused.items():
        entries = [
            _entry(source, each.unit.parameters[0], each.unit.gradients[0], each.unit.slots, each.start, each.length)
            for each in alike
        ]
        vectors.append(Vector(dtype, True, tuple(entries)))
        writers.append(alike[0].unit.writers)
    apart: dict[str, list[Entry]] = {}
    tables: list[Table] = []
    for piece in loose:
        unit = piece.unit
        writers.append(unit.writers)
        if piece.length is not None:
            tables.append(_rows_of_table(source, piece, piece.length))
            continue
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
    kept = [v for piece in loose for v in (*piece.unit.parameters, *piece.unit.slots)]
    return ShardLayout(tuple(vectors), tuple(tables), tuple(dict.fromkeys(kept)), tuple(writers), tuple(shared_writers))


def _rows_of_table(source: program_pb2.StepProgram, piece: _Piece, count: int) -> Table:
    """Returns the rows of a table that a shard holds."""
    (variable,), (gradient,) = piece.unit.parameters, piece.unit.gradients
    spec, by_row = source.variables[variable].tensor, piece.unit.by_row
    assert by_row is not None
    return Table(
        variable,
        gradient,
        (count, *spec.shape[1:]),
        spec.dtype,
        piece.unit.slots,
        piece.unit.writers,
        piece.start,
        is_whole=False,
        shape_constants=by_row.shape_constants,
    )


def _entry(
    source: program_pb2.StepProgram,
    variable: int,
    gradient: int,
    slots: tuple[int, ...],
    start: int = 0,
    length: int | None = None,
) -> Entry:
    shape = tuple(source.variables[variable].tensor.shape)
    length, step = math.prod(shape) if length is None else length, _step(source, variable)
    return Entry(variable, gradient, slots, shape, start, length, -(-length // step) * step)
