"""What synchronous workers may do each for itself, for speed and against exactness (`--relax`)."""

from collections.abc import Mapping

from fdt.errors import UsageError

OPTION = "relax"
BATCH_NORM, RANDOM = "batch-norm", "random"
_KINDS = (BATCH_NORM, RANDOM)

# In the names of functions of a step, and of their gradients: within them a worker may take its own rows for the batch.
OWN_ROWS = "fdt_own_rows"


def relaxed(options: Mapping[str, str]) -> frozenset[str]:
    """Returns what is relaxed, from the options of a job.

    Raises:
        UsageError: There is no such thing.
    """
    kinds = frozenset(filter(None, options.get(OPTION, "").split(",")))
    unknown = sorted(kinds.difference(_KINDS))
    if unknown or (OPTION in options and not kinds):
        raise UsageError(
            f"--relax takes {' or '.join(_KINDS)}, or both with a comma. Received: --relax {options[OPTION]}"
        )
    return kinds
