"""Reads whether parameters and gradients are rounded to 16 bits between workers (`--wire fp16`)."""

from collections.abc import Mapping

from fdt.errors import UsageError

OPTION = "wire"
_FORMS = ("exact", "fp16")


def is_rounded(options: Mapping[str, str]) -> bool:
    """Returns whether they are rounded, from the options of a job.

    Raises:
        UsageError: The option has an unknown value.
    """
    form = options.get(OPTION, _FORMS[0])
    if form not in _FORMS:
        raise UsageError(f"--wire must be one of {', '.join(_FORMS)}. Received: --wire {form}")
    return form == "fp16"
