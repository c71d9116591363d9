"""Tells with how many synchronous workers a training fits into memory."""

import dataclasses
from collections.abc import Sequence

from fdt.base.worker_bounds import shown

# No training asks for more workers.
_MAX_WORKERS = 1024


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """What each synchronous worker needs of memory, in bytes; without activations, see `fdt.division.memory`.

    Attributes:
        whole: If it holds all variables.
        fixed: If variables are held in parts: its process, a step's gradients, and what stays whole.
        shared: The variables in parts, of which each of N workers holds one in N.
    """

    whole: int
    fixed: int
    shared: int

    def in_parts(self, workers: int) -> int:
        """Returns what each of some workers needs that hold variables in parts."""
        return self.fixed + -(-self.shared // workers)

    def fits(self, workers: int, memory_bytes: int) -> bool:
        """Whether a training on some workers fits, each of which may use so much memory."""
        return self.whole <= memory_bytes or (workers > 1 and self.in_parts(workers) <= memory_bytes)

    def least_workers(self, memory_bytes: int, at_least: int = 1) -> int | None:
        """Returns the least number of workers with which it fits, from `at_least` on; None if it fits with none."""
        return next((n for n in range(at_least, _MAX_WORKERS + 1) if self.fits(n, memory_bytes)), None)

    def line(self, workers: Sequence[int], memory_bytes: int | None) -> str:
        """Returns what people are told of some numbers of workers.

        Args:
            workers: These numbers.
            memory_bytes: What each worker may use; None if that was not said.
        """
        needs = f"memory of a synchronous worker, without activations: {shown(self.whole)} with all variables"
        if memory_bytes is None or self.whole <= memory_bytes:
            return needs
        too_few = [str(n) for n in workers if not self.fits(n, memory_bytes)]
        least = self.least_workers(memory_bytes)
        if least is None:
            return f"{needs}; it fits with no number of workers of {shown(memory_bytes)}"
        refused = f"does not fit with {' or '.join(too_few)} workers of {shown(memory_bytes)}; " if too_few else ""
        in_parts = f"with {least} it does, which hold variables in parts ({shown(self.in_parts(least))} each)"
        return f"{needs}; {refused}{in_parts}"
