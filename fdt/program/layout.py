"""Describes what each worker holds of a tensor: its layout."""

import dataclasses
import enum
import functools
from collections.abc import Sequence

from fdt.program.size import Dim, Size, derived


class Combine(enum.Enum):
    """How the workers' tensors of a partial value are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclasses.dataclass(frozen=True)
class Whole:
    """Every worker holds the tensor, bit for bit the same."""


@dataclasses.dataclass(frozen=True)
class Divided:
    """Every worker holds consecutive entries along one dimension, in the order of the workers.

    Of a concatenation of divided tensors, a worker holds its entries of each.

    Attributes:
        dim: The dimension, counted from 0.
        sizes: How many entries each worker holds; their sum is the dimension's size.
        blocks: For each of the concatenated tensors, how many entries each worker holds; empty for a single one.
        of_state: Whether these are the parts of a variable, and of what is computed of it entry by entry, not of the batch.
    """

    dim: int
    sizes: tuple[Dim, ...]
    blocks: tuple[tuple[Dim, ...], ...] = ()
    of_state: bool = False

    @functools.cached_property
    def size(self) -> Dim:
        """The dimension's size."""
        return sum(self.sizes)

    def fixed(self) -> "Divided":
        """The same, of numbers, which are those of the batch with which the step is divided."""
        blocks = tuple(tuple(map(int, block)) for block in self.blocks)
        return Divided(self.dim, tuple(map(int, self.sizes)), blocks)

    def at(self, dim: int) -> "Divided":
        """The same entries along another dimension."""
        return dataclasses.replace(self, dim=dim)

    @property
    def each(self) -> tuple[tuple[Dim, ...], ...]:
        """How many entries each worker holds of each block."""
        return self.blocks or (self.sizes,)

    def spans(self, rank: int) -> list[tuple[Dim, Dim]]:
        """Returns, for each block, the start of a worker's entries in the whole tensor, and their number."""
        found: list[tuple[Dim, Dim]] = []
        before: Dim = 0
        for sizes in self.each:
            found.append((before + sum(sizes[:rank]), sizes[rank]))
            before += sum(sizes)
        return found

    def picked(self, begin: int, end: Dim, stride: int) -> "tuple[Divided, list[list[tuple[Dim, Dim]]]]":
        """Selects every `stride`-th entry in [begin, end), each staying on its worker.

        Returns:
            The selection's layout, and for each worker and block its first selected entry and their number.
        """
        picks = []
        for rank in range(len(self.sizes)):
            own, before = [], 0
            for start, size in self.spans(rank):
                first = begin + max(0, -((begin - start) // stride)) * stride
                own.append((before + first - start, max(0, -((first - min(end, start + size)) // stride))))
                before += size
            picks.append(own)
        blocks = [tuple(own[block][1] for own in picks) for block in range(len(self.each))]
        return joined(self.dim, blocks), picks


@dataclasses.dataclass(frozen=True)
class Owned:
    """Every worker holds those entries along dimension 0 whose ids are among its rows of a variable, in the batch's order.

    So are the rows of a sparse gradient, and their ids.

    Attributes:
        owners: The layout of the variable.
        gradient: Names the gradient: entries of different ones do not go together.
    """

    owners: Divided
    gradient: str


@dataclasses.dataclass(frozen=True)
class Partial:
    """Every worker holds a tensor of the full shape; the value is their sum, maximum or minimum."""

    combine: Combine = Combine.SUM


def joined(dim: int, blocks: Sequence[tuple[Dim, ...]]) -> Divided:
    """Returns the layout of concatenated blocks, given how many entries of each block every worker holds."""
    full = tuple(block for block in blocks if sum(block)) or tuple(blocks[:1])
    sizes = tuple(map(sum, zip(*full, strict=True)))
    return Divided(dim, sizes, full if len(full) > 1 else ())


Layout = Whole | Divided | Owned | Partial

WHOLE = Whole()
PARTIAL = Partial()


def shares(num_rows: int, num_workers: int) -> tuple[int, ...]:
    """Returns how many of a batch's rows each worker takes: as equal as possible, the first workers one more."""
    small, extra = divmod(num_rows, num_workers)
    return tuple(small + (rank < extra) for rank in range(num_workers))


def sized_shares(num_rows: Dim, num_workers: int) -> tuple[Dim, ...]:
    """Returns the same for a number of rows that may differ from batch to batch."""
    if not isinstance(num_rows, Size):
        return shares(num_rows, num_workers)
    # The last worker's is what the others leave, so that all of them add up to the number of rows.
    first = [
        derived(f"share {rank} of {num_workers} of", functools.partial(_share, rank, num_workers), num_rows)
        for rank in range(num_workers - 1)
    ]
    return (*first, num_rows - sum(first))


def _share(rank: int, num_workers: int, num_rows: int) -> int:
    return shares(num_rows, num_workers)[rank]


def batch_layouts(shapes: Sequence[Sequence[Dim]], dim: int, num_workers: int) -> list[Layout]:
    """Returns the layouts of a batch's arrays.

    Every worker gets arrays without the batch's number of rows, and scalars, in full. A wrong guess costs an exchange.

    Args:
        shapes: The arrays' shapes.
        dim: The dimension of their rows.
        num_workers: How many parts to make.
    """
    num_rows = next((shape[dim] for shape in shapes if len(shape) > dim), 0)

    def layout(shape: Sequence[Dim]) -> Layout:
        of_rows = len(shape) > dim + 1 or (len(shape) == dim + 1 and shape[dim] == num_rows)
        return Divided(dim, sized_shares(shape[dim], num_workers)) if of_rows else WHOLE

    return [layout(shape) for shape in shapes]
