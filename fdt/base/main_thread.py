"""Waits of a process's main thread, in which Python runs the handlers of signals.

The kernel may give a signal to any thread. The main thread runs its handler when it next runs Python code; a wait without a
limit could put that off for ever.
"""

import queue
import threading
from typing import TypeVar

# Longest time that a handler waits.
_WAKE_S = 1.0

_T = TypeVar("_T")


def wait(event: threading.Event) -> None:
    """Waits until an event is set."""
    while not event.wait(_WAKE_S):
        pass


def take(items: "queue.SimpleQueue[_T]") -> _T:
    """Returns a queue's next item, once there is one."""
    while True:
        try:
            return items.get(timeout=_WAKE_S)
        except queue.Empty:
            continue
