"""Reads what synchronous workers may compute separately, which is faster but not exact (`--relax`)."""

from collections.abc import Mapping

from fdt.errors import UsageError

OPTION = "relax"
BATCH_NORM, RANDOM = "batch-norm", "random"
_KINDS = (BATCH_NORM, RANDOM)

# Marks, in the names of a step's functions and of their gradients, where a worker may use its own rows as the batch.
OWN_ROWS = "fdt_own_rows"


def relaxed(options: Mapping[str, str]) -> frozenset[str]:
    """Returns what is relaxed, from the options of a job.

    Raises:
        UsageError: The option has an unknown value, or none.
    """
    kinds = frozenset(filter(None, options.get(OPTION, "").split(",")))
    unknown = sorted(kinds.difference(_KINDS))
    if unknown or (OPTION in options and not kinds):
        raise UsageError(
            f"--relax takes {' or '.join(_KINDS)}, or both with a comma. Received: --relax {options[OPTION]}"
        )
    return kinds
