"""Authenticates workers: each attaches with a one-time secret, and then uses a key for the job that it serves.

A pool has one `WorkerKeys` for each port on which workers attach: a secret or key of one port is invalid at the other.
"""

import dataclasses
import hashlib
import secrets
import threading

from fdt.errors import AccessError

_ATTACH = "Attach"


@dataclasses.dataclass(frozen=True)
class Serving:
    """The worker and job that a key stands for.

    Attributes:
        worker: The attached worker.
        job: The job that it was assigned to.
    """

    worker: str
    job: str


class WorkerKeys:
    """The secrets and keys of one port's workers; may be called from any thread. Only hashes are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The worker that each unused secret was made for, by the secret's hash.
        self._unused: dict[bytes, str] = {}
        self._serving: dict[bytes, Serving] = {}
        # Each attached worker, and the hash of its key; None before its assignment.
        self._attached: dict[str, bytes | None] = {}
        # The hash of each worker's unused secret, so that it can be deleted without a search among thousands of secrets.
        self._secret_of: dict[str, bytes] = {}

    def issue(self, worker: str) -> str:
        """Returns a new secret with which a worker, about to be started, will attach."""
        secret = secrets.token_hex(32)
        with self._lock:
            self._unused[_hash(secret)] = worker
            self._secret_of[worker] = _hash(secret)
        return secret

    def opens(self, method: str, given: bytes) -> bool:
        """Returns whether a token allows a method of `fdt.v1.Workers`: `Attach` needs a secret, the others a key."""
        with self._lock:
            return _hash(given) in (self._unused if method == _ATTACH else self._serving)

    def attach(self, worker: str, given: bytes) -> None:
        """Redeems a worker's secret, which is invalid from now on.

        Raises:
            AccessError: The secret is not this worker's, or was used before.
        """
        with self._lock:
            if self._unused.get(_hash(given)) != worker:
                raise AccessError(
                    "A worker attaches once, with the secret that was made for it and under its own name."
                )
            del self._unused[self._secret_of.pop(worker)]
            self._attached[worker] = None

    def assign(self, worker: str, job: str) -> str:
        """Returns a new key with which a worker makes calls for its job; the key is invalid if the worker is gone."""
        key = secrets.token_hex(32)
        with self._lock:
            if worker in self._attached:
                self._attached[worker] = _hash(key)
                self._serving[_hash(key)] = Serving(worker, job)
        return key

    def bearer(self, given: bytes) -> Serving:
        """Returns the worker and job that a key stands for.

        Raises:
            AccessError: The key is invalid: its worker is gone, or the job has ended.
        """
        with self._lock:
            serving = self._serving.get(_hash(given))
        if serving is None:
            raise AccessError("This key's worker is no longer attached, or its job has ended.")
        return serving

    def forget(self, worker: str) -> None:
        """Deletes a worker's secret and key: its stream or its process has ended."""
        with self._lock:
            self._unused.pop(self._secret_of.pop(worker, b""), None)
            self._serving.pop(self._attached.pop(worker, None) or b"", None)

    def end(self, job: str) -> None:
        """Deletes the keys of a job's workers."""
        with self._lock:
            self._serving = {key: each for key, each in self._serving.items() if each.job != job}


def _hash(given: str | bytes) -> bytes:
    # Looked up by hash, so that the time of the comparison reveals nothing about a secret.
    return hashlib.sha256(given if isinstance(given, bytes) else given.encode()).digest()
