"""How workers prove who they are: a secret to attach with, which serves once, and a key for the job that each then serves.

A pool has one such table for each port on which workers come: what opens something at the one is nothing at the other.
"""

import dataclasses
import hashlib
import secrets
import threading

from fdt.errors import AccessError

_ATTACH = "Attach"


@dataclasses.dataclass(frozen=True)
class Serving:
    """Whom a key stands for.

    Attributes:
        worker: That attached.
        job: That it was assigned to.
    """

    worker: str
    job: str


class WorkerKeys:
    """Of the workers of one port; called from any thread. Only hashes are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the hash of a secret that has not been used, the worker that it was made for.
        self._unused: dict[bytes, str] = {}
        self._attached: set[str] = set()
        self._serving: dict[bytes, Serving] = {}

    def issue(self, worker: str) -> str:
        """Makes the secret with which a worker that is about to be started attaches."""
        secret = secrets.token_hex(32)
        with self._lock:
            self._unused[_hash(secret)] = worker
        return secret

    def opens(self, method: str, given: bytes) -> bool:
        """Returns whether somebody may call a method of `fdt.v1.Workers`: to attach, with a secret; then with a key."""
        with self._lock:
            return _hash(given) in (self._unused if method == _ATTACH else self._serving)

    def attach(self, worker: str, given: bytes) -> None:
        """Takes a worker's secret, which opens nothing from now on.

        Raises:
            AccessError: It is not this worker's, or has served.
        """
        with self._lock:
            if self._unused.get(_hash(given)) != worker:
                raise AccessError(
                    "A worker attaches once, with the secret that was made for it and under its own name."
                )
            del self._unused[_hash(given)]
            self._attached.add(worker)

    def assign(self, worker: str, job: str) -> str:
        """Makes the key with which a worker calls for its job; if the worker is gone, the key opens nothing."""
        key = secrets.token_hex(32)
        with self._lock:
            if worker in self._attached:
                self._serving[_hash(key)] = Serving(worker, job)
        return key

    def bearer(self, given: bytes) -> Serving:
        """Returns whom a key stands for.

        Raises:
            AccessError: Nobody: its worker is gone, or the job has ended.
        """
        with self._lock:
            serving = self._serving.get(_hash(given))
        if serving is None:
            raise AccessError("This key's worker is attached no more, or its job has ended.")
        return serving

    def forget(self, worker: str) -> None:
        """Has nothing stand for a worker any more: its stream or its process has ended."""
        with self._lock:
            self._attached.discard(worker)
            self._unused = {secret: other for secret, other in self._unused.items() if other != worker}
            self._serving = {key: each for key, each in self._serving.items() if each.worker != worker}

    def end(self, job: str) -> None:
        """Has nothing stand for the workers of a job any more."""
        with self._lock:
            self._serving = {key: each for key, each in self._serving.items() if each.job != job}


def _hash(given: str | bytes) -> bytes:
    # Looked up by its hash, a secret is not told by how long it takes to compare.
    return hashlib.sha256(given if isinstance(given, bytes) else given.encode()).digest()
