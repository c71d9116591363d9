"""Whose tensors are on the link of a host that all parameters are pulled from and all gradients are pushed to.

Shared by all workers at once, a link serves those who began together at the same time: then it is idle while all of them
compute. Two at a time, so that the next one's request is under way while one's tensors are. `docs/decisions/0032`.
"""

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from nfdt.devices import host_of

_AT_ONCE = 2


class Turns:
    """Turns of the workers, in each direction of the servers' link; of servers on several hosts nobody waits for any."""

    def __init__(self, servers: Sequence[str]):
        """Notes whose link it is.

        Args:
            servers: Devices of the parameter servers.
        """
        hosts = set(map(host_of, servers))
        self._host = hosts.pop() if len(hosts) == 1 else None
        self._out, self._into = (threading.Semaphore(_AT_ONCE) for _ in range(2))

    def out(self, worker: str) -> AbstractContextManager[object]:
        """Returns the turn in which the worker of a device may pull."""
        return self._out if self._travels(worker) else contextlib.nullcontext()

    def into(self, worker: str) -> AbstractContextManager[object]:
        """Returns the turn in which it may push."""
        return self._into if self._travels(worker) else contextlib.nullcontext()

    def _travels(self, worker: str) -> bool:
        return self._host is not None and host_of(worker) != self._host
