"""Reads how synchronous workers hold variables, each all of them or a part (`--variables`), and how much memory they have."""

import enum
from collections.abc import Mapping

from fdt.errors import UsageError

OPTION = "variables"
# The bytes of memory that each synchronous worker may use, or a host's process of asynchronous ones. A client tells its job.
MEMORY = "memory"


class HeldAs(enum.Enum):
    """What workers hold of a training's variables."""

    # Tables that are only looked up in parts, everything else whole; everything in parts if it does not fit otherwise.
    AUTO = "auto"
    WHOLE = "whole"
    # Whatever is updated and large enough.
    PARTS = "parts"


def held_as(options: Mapping[str, str]) -> HeldAs:
    """Returns how variables are held, from the options of a job.

    Raises:
        UsageError: The option has an unknown value.
    """
    value = options.get(OPTION, HeldAs.AUTO.value)
    known = [each.value for each in HeldAs]
    if value not in known:
        raise UsageError(f"--{OPTION} must be one of {', '.join(known)}. Received: --{OPTION} {value}")
    return HeldAs(value)


def memory_bytes(options: Mapping[str, str]) -> int | None:
    """Returns how many bytes of memory each worker may use, from the options of a job; None if that is not known.

    Raises:
        UsageError: The option is no number of bytes.
    """
    value = options.get(MEMORY)
    if value is not None and not (value.isascii() and value.isdecimal() and int(value)):
        raise UsageError(f"--{MEMORY} must be a number of bytes in a job's options. Received: --{MEMORY} {value}")
    return None if value is None else int(value)
