"""Bounds how far a worker may be ahead of the slowest: stale synchronous parallel (Ho et al., NIPS 2013)."""

import ctypes
import functools
import weakref
from collections.abc import Iterable

import tensorflow as tf

from fdt.base.native import library, optional
from nfdt.plain_gate import PlainGate

# The limit for workers that share the cores of one host. They are equally fast: one is further ahead only because another was
# delayed, for example by the compilation of its first step.
_SHARED_HOST = 2


def default_max_delay(hosts: Iterable[str]) -> int | None:
    """Returns the default limit; None (no limit) on several hosts, whose speeds may differ permanently.

    Args:
        hosts: The workers' hosts.
    """
    return _SHARED_HOST if len(set(hosts)) == 1 else None


class StalenessBound:
    """Counts the steps of each worker, and holds a worker that is too far ahead. Any thread and any graph may call.

    No worker waits for an idle one; all are idle at first. When a worker gets work again, its count is raised to that of the
    slowest.

    Attributes:
        max_delay: How many steps ahead a worker may be; None for no limit.
    """

    def __init__(self, num_workers: int, max_delay: int | None):
        """
        Args:
            num_workers: How many.
            max_delay: A worker that is further ahead of the slowest waits; 0 is synchronous, None never waits.
        """
        self.max_delay = max_delay
        self._gate: NativeGate | PlainGate
        self._gate = (NativeGate if optional("nfdt") is not None else PlainGate)(num_workers, max_delay)

    def is_open(self, worker: int) -> bool:
        """Whether a worker may begin a step."""
        return self._gate.is_open(worker)

    def enter(self, worker: int) -> float:
        """Waits until a worker may begin a step; returns the seconds that it waited."""
        return self._gate.enter(worker)

    def leave(self, worker: int) -> None:
        """Records a step that a worker has made."""
        self._gate.leave(worker)

    def set_idle(self, worker: int, is_idle: bool) -> None:
        """Records whether a worker has nothing to do."""
        self._gate.set_idle(worker, is_idle)

    def open(self) -> None:
        """Removes the limit: no worker is held from now on."""
        self._gate.open()

    def enter_in_graph(self, worker: tf.Tensor) -> tf.Tensor:
        """Does what `enter` does, in a graph on a CPU of this process; blocks no thread while it waits.

        Needs compiled operations, as `leave_in_graph`.

        Args:
            worker: int64 scalar.

        Returns:
            float64 scalar.
        """
        return library("nfdt").ops.fdt_enter(gate=self._number(), worker=worker)

    def leave_in_graph(self, worker: tf.Tensor) -> tf.Operation:
        """Does what `leave` does, in a graph on a CPU of this process.

        Args:
            worker: int64 scalar.
        """
        return library("nfdt").ops.fdt_leave(gate=self._number(), worker=worker)

    def _number(self) -> tf.Tensor:
        assert isinstance(self._gate, NativeGate)
        return tf.constant(self._gate.number, tf.int64)


class NativeGate:
    """A gate of the compiled operations, which steps in a graph reach by its number; see `StalenessBound`."""

    def __init__(self, num_workers: int, max_delay: int | None) -> None:
        """Makes a gate for workers that are all idle."""
        self.number: int = _native().fdt_gate_make(num_workers, -1 if max_delay is None else max_delay)
        weakref.finalize(self, _native().fdt_gate_delete, self.number)

    def is_open(self, worker: int) -> bool:
        return bool(_native().fdt_gate_is_open(self.number, worker))

    def enter(self, worker: int) -> float:
        return float(_native().fdt_gate_enter(self.number, worker))

    def leave(self, worker: int) -> None:
        _native().fdt_gate_leave(self.number, worker)

    def set_idle(self, worker: int, is_idle: bool) -> None:
        _native().fdt_gate_set_idle(self.number, worker, int(is_idle))

    def open(self) -> None:
        _native().fdt_gate_open(self.number)


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
