"""Waits for what other programs do, where they tell nobody when they have done it."""

import threading
import time
from collections.abc import Callable

_PAUSE_S = 0.1


def wait_until(holds: Callable[[], object], what: Callable[[], str], limit_s: float) -> None:
    """Returns as soon as it holds; fails with what is known if the limit passes."""
    end_s, never = time.monotonic() + limit_s, threading.Event()
    while not holds():
        assert time.monotonic() < end_s, f"not within {limit_s:.0f} s: {what()}"
        never.wait(_PAUSE_S)
