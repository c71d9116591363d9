"""Reads how synchronous workers hold variables: each all of them, or each a part (`--variables`)."""

import enum
from collections.abc import Mapping

from fdt.errors import UsageError

OPTION = "variables"


class HeldAs(enum.Enum):
    """What workers hold of a training's variables."""

    # Tables that are only looked up in parts, everything else whole.
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
