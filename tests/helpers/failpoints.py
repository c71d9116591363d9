"""Points of the code at which a process is killed, by name: where a snapshot is written, handed over and kept.

They are laid by exchanging functions in the process that is to die, so what is tested has no such points itself.
"""

import functools
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from fdt.pool.session_blobs import SessionBlobs
from fdt.transport import blob_store


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _lay(owner: Any, name: str, call: int, *, after: bool) -> None:
    """Has this process die before or after the call of a function that has this number, from 1."""
    original, calls = getattr(owner, name), 0

    @functools.wraps(original)
    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            _die()
        result = original(*arguments, **options)
        if calls == call and after:
            _die()
        return result

    setattr(owner, name, dying)


# Of the worker that writes it, once it has been asked for one. A state of several pieces is written piece by piece.
OF_WORKER: Mapping[str, Callable[[], None]] = {
    "before the file": lambda: _lay(blob_store.BlobStore, "_write", 1, after=False),
    "an empty file": lambda: _lay(blob_store, "_write_all", 1, after=False),
    "in the middle": lambda: _lay(blob_store, "_write_all", 2, after=True),
    "before the rename": lambda: _lay(os, "replace", 1, after=False),
    "after the rename": lambda: _lay(os, "replace", 1, after=True),
    "before the answer": lambda: _lay(blob_store.BlobStore, "payload", 1, after=True),
}
# Of the pool that takes it over: its second, so that there was one before.
OF_POOL: Mapping[str, Callable[[], None]] = {
    "before the pool takes it over": lambda: _lay(blob_store.BlobStore, "adopt", 2, after=False),
    "after the pool has taken it over": lambda: _lay(blob_store.BlobStore, "adopt", 2, after=True),
    "before the pool keeps it": lambda: _lay(SessionBlobs, "keep", 2, after=False),
    "before the client knows": lambda: _lay(SessionBlobs, "keep", 2, after=True),
}
