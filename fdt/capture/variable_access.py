"""Notices when the script reads or may change a variable whose newest value is on the pool."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from fdt.base.patch import Patches


class _Thread(threading.local):
    """What is known of each thread.

    Attributes:
        paused: How many contexts it is in whose accesses are not the script's.
    """

    paused = 0


class VariableAccess:
    """Watches variables.

    Everything that reads or writes a variable first takes its handle (TensorFlow's compiled part too, past the property
    `handle`: an operation that is given a variable takes its `_handle`); a function that was traced before has the handle among
    its captured inputs.
    """

    def __init__(self) -> None:
        """Watches nothing yet."""
        self._touched: Callable[[set[int]], None] = _nothing
        # They belong to the script.
        self._watched: WeakValueDictionary[int, tf.Variable] = WeakValueDictionary()
        self._by_handle: dict[int, int] = {}
        self._thread = _Thread()
        self._pid = os.getpid()

    def install(self, patches: Patches) -> None:
        """Puts the hook in place."""
        watched = self._watched

        def get(variable: Any) -> Any:
            if watched and id(variable) in watched and not self._thread.paused and tf.executing_eagerly():
                self._tell({id(variable)})
            try:
                return vars(variable)["_handle"]
            except KeyError:
                raise AttributeError("_handle") from None

        def put(variable: Any, handle: Any) -> None:
            vars(variable)["_handle"] = handle

        patches.add(BaseResourceVariable, "_handle", property(get, put))

    def listen(self, touched: Callable[[set[int]], None]) -> None:
        """Calls a function with the ids of watched variables before each of the script's accesses to them."""
        self._touched = touched

    def watch(self, variables: Iterable[tf.Variable]) -> None:
        """Watches these variables too."""
        with self.paused():
            for variable in variables:
                self._watched[id(variable)] = variable
                self._by_handle[id(variable.handle)] = id(variable)

    def captured(self, inputs: Iterable[Any]) -> None:
        """Called with the captured inputs of a function that is about to run here."""
        if self._watched and not self._thread.paused:
            variables = {self._by_handle[id(i)] for i in inputs if id(i) in self._by_handle}
            if variables:
                self._tell(variables)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """This thread's accesses within the context are ours, not the script's."""
        self._thread.paused += 1
        try:
            yield
        finally:
            self._thread.paused -= 1

    def _tell(self, variables: set[int]) -> None:
        # A forked child has the values of when it was forked, as in plain python; the job is its parent's.
        if os.getpid() != self._pid:
            return
        with self.paused():
            self._touched(variables)


def _nothing(_: set[int]) -> None:
    """Takes the place of a listener before `listen` is called."""
