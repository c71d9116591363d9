"""Gives free memory of this process back to the system."""

import contextlib
import ctypes


def give_back() -> None:
    """Returns what the C library keeps for later; after making a large step that is a third of a process's memory."""
    # Only the GNU C library has this.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
