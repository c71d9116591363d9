"""What a worker holds of a tensor."""

import dataclasses
import enum
from collections.abc import Sequence


class Combine(enum.Enum):
    """What the workers' tensors of a partial value are put together by."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclasses.dataclass(frozen=True)
class Whole:
    """Every worker holds the tensor, bit for bit the same."""


@dataclasses.dataclass(frozen=True)
class Divided:
    """Every worker holds consecutive entries along one dimension, in the order of the workers.

    Attributes:
        dim: The dimension, counted from 0.
        sizes: How many entries each worker holds; their sum is the dimension's size.
    """

    dim: int
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """The dimension's size."""
        return sum(self.sizes)

    def at(self, dim: int) -> "Divided":
        """The same entries along another dimension."""
        return Divided(dim, self.sizes)

    def start(self, rank: int) -> int:
        """The first entry of a worker."""
        return sum(self.sizes[:rank])


@dataclasses.dataclass(frozen=True)
class Partial:
    """Every worker holds a tensor of the full shape; the value is their sum, maximum or minimum."""

    combine: Combine = Combine.SUM


Layout = Whole | Divided | Partial

WHOLE = Whole()
PARTIAL = Partial()


def shares(num_rows: int, num_workers: int) -> tuple[int, ...]:
    """Returns how many of a batch's rows each worker takes: as equal as can be, the first ones one more."""
    small, extra = divmod(num_rows, num_workers)
    return tuple(small + (rank < extra) for rank in range(num_workers))


def batch_layouts(shapes: Sequence[Sequence[int]], dim: int, num_workers: int) -> list[Layout]:
    """Returns how the arrays of a batch are divided.

    A list that is no column of the batch, and a number, every worker gets in full. A wrong guess costs an exchange.

    Args:
        shapes: Of the arrays.
        dim: Along which their rows are.
        num_workers: As many parts.
    """
    num_rows = next((shape[dim] for shape in shapes if len(shape) > dim), 0)

    def layout(shape: Sequence[int]) -> Layout:
        of_rows = len(shape) > dim + 1 or (len(shape) == dim + 1 and shape[dim] == num_rows)
        return Divided(dim, shares(shape[dim], num_workers)) if of_rows else WHOLE

    return [layout(shape) for shape in shapes]
