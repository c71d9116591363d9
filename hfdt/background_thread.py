"""Lets Horovod's background thread sleep while its rank is idle.

Horovod's thread polls all other ranks for work every millisecond (HOROVOD_CYCLE_TIME). This takes a third of a core per rank,
even between two steps that are a minute apart. A longer cycle would delay every exchange, and Horovod cannot change it while it
runs. But a rank works only while it carries out an instruction. So the library's reference to `nanosleep`, which the thread
calls between polls, is replaced by a function that waits for the next instruction (`native/rest.cc`, docs/decisions/0061).
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
    """Makes Horovod's thread sleep while its rank is idle, from now on.

    Args:
        horovod: The path of Horovod's library, which this process has loaded.

    Returns:
        None, or why the library cannot be patched; Horovod then works as before.
    """
    try:
        turn(horovod, "nanosleep", ctypes.cast(_FUNCTIONS.fdt_rest_sleep, ctypes.c_void_p).value or 0)
    except (OSError, ValueError, struct.error) as error:
        return str(error)
    return None


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Keeps Horovod's thread polling inside the block; every exchange with other ranks has to be inside one."""
    _FUNCTIONS.fdt_rest_begin_work()
    try:
        yield
    finally:
        _FUNCTIONS.fdt_rest_end_work()


def naps() -> int:
    """Returns how often the thread has slept for one cycle."""
    return int(_FUNCTIONS.fdt_rest_naps())


def rested(times: int, limit_s: float) -> bool:
    """Waits until the thread has begun `times` more idle sleeps; returns whether it has within the limit."""
    return bool(_FUNCTIONS.fdt_rest_wait(ctypes.c_int64(times), round(limit_s * 1000)))
