"""Stale synchronous parallel: how far a worker may be ahead of the slowest (Ho et al., NIPS 2013)."""

import ctypes
import functools
import weakref
from collections.abc import Iterable

import tensorflow as tf

from fdt.base.native import library

# Of workers that share the cores of one host. They are equally fast: what is further ahead is so since another was held up,
# by the compilation of its first step for example.
_SHARED_HOST = 2


def default_max_delay(hosts: Iterable[str]) -> int | None:
    """Returns the limit where nobody has set one; None for none, as for hosts that may differ in speed for good.

    Args:
        hosts: Of the workers.
    """
    return _SHARED_HOST if len(set(hosts)) == 1 else None


class StalenessBound:
    """Counts the steps of each worker, and holds whoever is too far ahead of the slowest. Any thread may call, and any graph.

    A worker with nothing to do, as all are at first, is waited for by nobody; once it has something to do it is level with the
    slowest, at least.

    Attributes:
        max_delay: How far ahead one may be; None if nobody is held.
    """

    def __init__(self, num_workers: int, max_delay: int | None):
        """
        Args:
            num_workers: How many.
            max_delay: A worker that is further ahead of the slowest waits; 0 is synchronous, None never waits.
        """
        self.max_delay = max_delay
        native = _native()
        self._number = native.fdt_gate_make(num_workers, -1 if max_delay is None else max_delay)
        weakref.finalize(self, native.fdt_gate_delete, self._number)

    def is_open(self, worker: int) -> bool:
        """Whether a worker may begin a step."""
        return bool(_native().fdt_gate_is_open(self._number, worker))

    def enter(self, worker: int) -> float:
        """Waits until a worker may begin a step; returns the seconds that it was held."""
        return float(_native().fdt_gate_enter(self._number, worker))

    def leave(self, worker: int) -> None:
        """Records a step that a worker has made."""
        _native().fdt_gate_leave(self._number, worker)

    def set_idle(self, worker: int, is_idle: bool) -> None:
        """Records whether a worker has nothing to do."""
        _native().fdt_gate_set_idle(self._number, worker, int(is_idle))

    def open(self) -> None:
        """Lets everybody in, from now on."""
        _native().fdt_gate_open(self._number)

    def enter_in_graph(self, worker: tf.Tensor) -> tf.Tensor:
        """Does what `enter` does, in a graph on a CPU of this process, and takes no thread while it waits.

        Args:
            worker: int64 scalar.

        Returns:
            float64 scalar.
        """
        return library("nfdt").ops.fdt_enter(gate=tf.constant(self._number, tf.int64), worker=worker)

    def leave_in_graph(self, worker: tf.Tensor) -> tf.Operation:
        """Does what `leave` does, in a graph on a CPU of this process.

        Args:
            worker: int64 scalar.
        """
        return library("nfdt").ops.fdt_leave(gate=tf.constant(self._number, tf.int64), worker=worker)


@functools.cache
def _native() -> ctypes.CDLL:
    functions = library("nfdt").functions
    number = ctypes.c_int64
    for name, result, *arguments in (
        ("make", number, number, number),
        ("delete", None, number),
        ("enter", ctypes.c_double, number, number),
        ("is_open", ctypes.c_int, number, number),
        ("leave", None, number, number),
        ("set_idle", None, number, number, ctypes.c_int),
        ("open", None, number),
    ):
        function = getattr(functions, f"fdt_gate_{name}")
        function.restype, function.argtypes = result, arguments
    return functions
