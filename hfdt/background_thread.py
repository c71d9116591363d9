"""Lets Horovod's background thread sleep while its rank is idle.

Horovod's thread polls all other ranks for work every millisecond (HOROVOD_CYCLE_TIME). This takes a third of a core per rank,
even between two steps that are a minute apart. A longer cycle would delay every exchange, and Horovod cannot change it while it
runs. But a rank works only while it carries out an instruction. So our patch of Horovod has the thread sleep until the next
instruction begins (`idle.patch` in fdt/base/horovod_patches, docs/decisions/0061).
"""

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

from hfdt.horovod import hvd


@functools.cache
def _functions() -> ctypes.CDLL | None:
    """Returns the functions of Horovod's library; None without Horovod, where a rank is alone."""
    if hvd is None:
        return None
    (library,) = Path(str(hvd.__file__)).parent.glob("mpi_lib*.so")
    functions = ctypes.CDLL(str(library))
    functions.horovod_cycle_sleeps.restype = ctypes.c_int64
    functions.horovod_wait_for_idle_sleeps.restype = ctypes.c_bool
    functions.horovod_wait_for_idle_sleeps.argtypes = [ctypes.c_int64, ctypes.c_int]
    return functions


def sleep_when_idle() -> None:
    """Makes Horovod's thread sleep while its rank is idle, from now on."""
    if (functions := _functions()) is not None:
        functions.horovod_sleep_when_idle()


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Keeps Horovod's thread polling inside the block; every exchange with other ranks has to be inside one."""
    functions = _functions()
    if functions is None:
        yield
        return
    functions.horovod_add_work(1)
    try:
        yield
    finally:
        functions.horovod_add_work(-1)


def cycle_sleeps() -> int:
    """Returns how often the thread has slept for one cycle."""
    functions = _functions()
    return 0 if functions is None else int(functions.horovod_cycle_sleeps())


def slept_idle(times: int, limit_s: float) -> bool:
    """Waits until the thread has begun `times` more idle sleeps; returns whether it has within the limit."""
    functions = _functions()
    return functions is not None and bool(functions.horovod_wait_for_idle_sleeps(times, round(limit_s * 1000)))
