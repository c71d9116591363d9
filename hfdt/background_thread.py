"""Has Horovod's background thread sleep while its rank has nothing to do.

Horovod's thread looks for work every millisecond (HOROVOD_CYCLE_TIME), and for that asks all other ranks: a third of a core
each, also between two steps that are a minute apart. A longer cycle would make every exchange wait longer, and it cannot be
changed once Horovod runs. But the pool knows when a rank is at work: while it carries out an instruction. So the library's
reference to `nanosleep`, by which the thread waits for its next look, is turned to a function that waits for the next
instruction (`native/rest.cc`, docs/decisions/0061).
"""

import contextlib
import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

from fdt.base.native import library
from hfdt.got_patch import turn

_FUNCTIONS = library("hfdt").functions
_FUNCTIONS.fdt_rest_naps.restype = ctypes.c_int64


def install(horovod: Path) -> str | None:
    """Lets Horovod's thread rest from now on.

    Args:
        horovod: Its library, as this process has loaded it.

    Returns:
        Why it cannot be done; Horovod then works as before.
    """
    try:
        turn(horovod, "nanosleep", ctypes.cast(_FUNCTIONS.fdt_rest_sleep, ctypes.c_void_p).value or 0)
    except (OSError, ValueError, struct.error) as error:
        return str(error)
    return None


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Horovod's thread looks for work for the length of this; what meets other ranks belongs in it."""
    _FUNCTIONS.fdt_rest_begin_work()
    try:
        yield
    finally:
        _FUNCTIONS.fdt_rest_end_work()


def naps() -> int:
    """Returns how often the thread has slept for one cycle."""
    return int(_FUNCTIONS.fdt_rest_naps())


def rested(times: int, limit_s: float) -> bool:
    """Waits until the thread has lain down to rest so often more; returns whether it has within the limit."""
    return bool(_FUNCTIONS.fdt_rest_wait(ctypes.c_int64(times), round(limit_s * 1000)))
