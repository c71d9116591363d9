"""Waiting until something in a job has changed."""

import threading
import types

from fdt.client.direct import Direct, Handle


class Changes:
    """The lock of what arrives from a job, and the wait for more of it.

    Who waits takes what comes directly, unless another thread does; then it waits for that thread.
    """

    def __init__(self, direct: Direct, handle: Handle):
        """
        Args:
            direct: Connections to the workers.
            handle: Handles an event that came by them; called without the lock.
        """
        self._direct, self._handle = direct, handle
        self._changed = threading.Condition()
        # How often there was something new.
        self._news = 0

    def __enter__(self) -> None:
        self._changed.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._changed.__exit__(kind, error, trace)

    def tell(self) -> None:
        """Wakes who waits; called with the lock."""
        self._news += 1
        self._changed.notify_all()
        self._direct.wake()

    def wait(self, limit_s: float) -> None:
        """Waits until there may be something new; called with the lock, which others may take meanwhile."""
        if not self._direct.is_connected:
            self._changed.wait(limit_s)
            return
        known = self._news
        try:
            # Within the `try`: an interrupt may come as soon as the lock is free.
            self._changed.release()
            has_taken = self._direct.take(limit_s, self._handle)
        finally:
            self._changed.acquire()
        if has_taken:
            # Another thread may wait to take what comes next.
            self._changed.notify_all()
        elif self._news == known:
            self._changed.wait(limit_s)
