"""Collects the training steps of a script, each with one batch, for `fdt predict`."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from fdt.base.memory_need import MemoryNeed
from fdt.base.sharding import LEAST_PART_BYTES

if TYPE_CHECKING:
    import numpy as np

    from fdt.v1 import program_pb2


@dataclasses.dataclass(frozen=True)
class Sample:
    """A training step of the script, and one batch for it.

    Attributes:
        program: The step.
        variables: The script's variables, in the program's order.
        arrays: The batch, [rows, ...] each.
        exchanges: How often synchronous workers wait for each other in a step, apart from the exchange of gradients.
        exchanged_bytes: Bytes of these exchanges.
        memory: What synchronous workers need of memory; None if that is not known.
    """

    program: "program_pb2.StepProgram"
    variables: Sequence[Any]
    arrays: "Sequence[np.ndarray]"
    exchanges: int = 0
    exchanged_bytes: int = 0
    memory: MemoryNeed | None = None

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        dim = 1 if self.program.one_row else 0
        return next((array.shape[dim] for array in self.arrays if array.ndim > dim), 1)

    def sizes(self) -> list[int]:
        """Returns the batch sizes to measure, the largest first: the whole batch, a half, a quarter, an eighth."""
        parts = (1,) if self.program.one_size else (1, 2, 4, 8)
        return [self.rows // part for part in parts if self.rows >= part]

    def first(self, rows: int) -> "list[np.ndarray]":
        """Returns the arrays of the batch's first rows."""
        if not self.program.one_row:
            return [array[:rows] for array in self.arrays]
        are_rows = [array.ndim > 1 and array.shape[1] == self.rows for array in self.arrays]
        return [array[:, :rows] if cut else array for array, cut in zip(self.arrays, are_rows, strict=True)]

    def tensor_bytes(self, sparse: bool) -> list[int]:
        """Returns the bytes of each trained tensor whose gradient is sparse, or dense."""
        found = {g.variable: g.sparse for hole in self.program.holes for g in hole.gradients}
        return [self._num_bytes(variable) for variable, is_sparse in found.items() if is_sparse == sparse]

    def bytes_by_rows(self) -> list[int]:
        """Returns the bytes of each table of which asynchronous workers pull the rows that a batch uses."""
        return [self._num_bytes(variable) for variable in self._by_rows()]

    def cut_tables(self) -> list[tuple[int, int]]:
        """Returns the bytes of each of these tables that servers may hold parts of, and the least bytes of a part."""
        by_rows = self._by_rows()
        if not by_rows:
            return []
        # Imported here, since the script has to import TensorFlow first.
        from fdt.program.update.cut import cut
        from fdt.program.update.parameter_groups import find_units

        units = find_units(self.program, cut(self.program)).units
        return [
            (self._num_bytes(unit.parameters[0]), LEAST_PART_BYTES[unit.by_row.writes_all])
            for unit in units
            if unit.by_row is not None and unit.parameters[0] in by_rows
        ]

    def _by_rows(self) -> list[int]:
        # Imported here, since the script has to import TensorFlow first.
        from fdt.program.table_lookups import ByRows, tables_of

        return [i for i, verdict in tables_of(self.program).items() if isinstance(verdict, ByRows)]

    def _num_bytes(self, variable: int) -> int:
        # Imported here, since the script has to import TensorFlow first.
        from fdt.program.step_program import dtype_of

        tensor = self.program.variables[variable].tensor
        return math.prod(tensor.shape) * dtype_of(tensor).itemsize


@dataclasses.dataclass
class Found:
    """A training step, and how often the script makes it.

    Attributes:
        where: File and line of the script.
        what: The function that is called there.
        sample: Sample of its first call.
        steps: How many steps; None if the script's data do not tell.
    """

    where: str
    what: str
    sample: Sample
    steps: int | None


class Samples:
    """All steps of a script, each once."""

    def __init__(self) -> None:
        """Makes an empty collection."""
        self._found: dict[Hashable, Found] = {}

    def add(self, key: Hashable, where: str, what: str, sample: Callable[[], Sample], steps: int | None) -> None:
        """Adds a step, or adds to the number of a known one.

        Args:
            key: Identifies the step.
            where: File and line of the script.
            what: The function that is called there.
            sample: Returns a sample; called if the step is new.
            steps: How many steps; None if the script's data do not tell.
        """
        known = self._found.get(key)
        if known is None:
            self._found[key] = Found(where, what, sample(), steps)
        else:
            known.steps = None if known.steps is None or steps is None else known.steps + steps

    def found(self) -> list[Found]:
        """Returns the steps, in the order of their first calls."""
        return list(self._found.values())
