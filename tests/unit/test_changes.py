"""Waiting for changes, with the lock of what arrives."""

import threading

import pytest

from fdt.client.changes import Changes
from fdt.client.direct import Direct


class _Connected(Direct):
    """Connections whose wait is interrupted."""

    @property
    def is_connected(self) -> bool:
        return True

    def take(self, limit_s: float, handle: object) -> bool:
        raise KeyboardInterrupt


def test_an_interrupt_while_it_waits_leaves_the_lock_free() -> None:
    changes = Changes(_Connected(None), lambda event: None)
    with pytest.raises(KeyboardInterrupt), changes:
        changes.wait(60.0)
    told = threading.Thread(target=_tell, args=(changes,))
    told.start()
    told.join(30.0)
    assert not told.is_alive()


def test_a_wait_ends_when_another_thread_tells() -> None:
    changes = Changes(Direct(None), lambda event: None)
    with changes:
        teller = threading.Thread(target=_tell, args=(changes,))
        teller.start()
        changes.wait(60.0)
    teller.join(30.0)
    assert not teller.is_alive()


def _tell(changes: Changes) -> None:
    with changes:
        changes.tell()
