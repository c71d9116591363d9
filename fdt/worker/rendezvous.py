"""Where the processes of one job find each other: a few small values, which the pool keeps until the job ends.

They travel over the channel on which workers attach. A job's processes are told its key with their assignment; who does not
know it, though it be a worker of the same pool, neither reads nor sets the job's values.
"""

import secrets
import threading
import time

import grpc

from fdt.base.config import Timing
from fdt.errors import ProtocolError, WorkerError
from fdt.transport import rpc
from fdt.v1 import worker_pb2

# Processes tell each other addresses and names of files: some hundred bytes each, of a ring some hundred for each other rank.
MAX_KEYS = 16_384
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1 << 20
MAX_JOB_BYTES = 8 << 20
MAX_PAIR_BYTES = 1 << 10

# How often a value that is not there yet is asked for.
_POLL_S = 0.02


class RendezvousTable:
    """The pool's side: the values of all jobs. Called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, str] = {}
        self._values: dict[str, _Values] = {}

    def open(self, job: str, num_workers: int) -> str:
        """Makes a job's place, and returns its key."""
        key = secrets.token_hex(32)
        with self._lock:
            self._keys[job] = key
            self._values[key] = _Values(MAX_JOB_BYTES + MAX_PAIR_BYTES * num_workers**2)
        return key

    def close(self, job: str) -> None:
        """Forgets a job's values; does nothing for one that has none."""
        with self._lock:
            self._values.pop(self._keys.pop(job, ""), None)

    def put(self, rendezvous: str, key: str, value: bytes) -> None:
        """Sets a value.

        Raises:
            ProtocolError: No job has this place, or the value is more than is kept.
        """
        with self._lock:
            self._of(rendezvous).put(key, value)

    def get(self, rendezvous: str, key: str) -> bytes | None:
        """Returns a value; None while nobody has set it.

        Raises:
            ProtocolError: No job has this place.
        """
        with self._lock:
            return self._of(rendezvous).values.get(key)

    def _of(self, rendezvous: str) -> "_Values":
        if rendezvous not in self._values:
            raise ProtocolError(
                "No job that runs meets here; a process is told the key of its own job's with its assignment."
            )
        return self._values[rendezvous]


class _Values:
    """Of one job."""

    def __init__(self, max_bytes: int) -> None:
        self.values: dict[str, bytes] = {}
        self._max_bytes = max_bytes
        self._bytes = 0

    def put(self, key: str, value: bytes) -> None:
        if len(key.encode()) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            raise ProtocolError(
                f"Processes of a job tell each other values of at most {MAX_VALUE_BYTES} bytes under keys of at most "
                f"{MAX_KEY_BYTES}. Received: key={key[:MAX_KEY_BYTES]!r}, {len(value)} bytes"
            )
        size = self._bytes + len(value) - len(self.values.get(key, b""))
        if size > self._max_bytes or (key not in self.values and len(self.values) >= MAX_KEYS):
            raise ProtocolError(
                f"The processes of a job of this size tell each other at most {MAX_KEYS} values of {self._max_bytes} bytes in "
                f"all. Received: {len(self.values) + (key not in self.values)} values, {size} bytes"
            )
        self.values[key] = value
        self._bytes = size


class PoolRendezvous:
    """A process's side; see `fdt.worker.runtime.MeetingPlace`."""

    def __init__(self, channel: grpc.Channel, key: str, timing: Timing) -> None:
        """Asks nothing yet.

        Args:
            channel: On which the process has attached.
            key: Of the job's place.
            timing: `call_s` is each call's limit.
        """
        self._key, self._timing = key, timing
        self._put = channel.unary_unary(
            "/fdt.v1.Workers/PutValue",
            request_serializer=worker_pb2.PutValueRequest.SerializeToString,
            response_deserializer=worker_pb2.PutValueReply.FromString,
        )
        self._get = channel.unary_unary(
            "/fdt.v1.Workers/GetValue",
            request_serializer=worker_pb2.GetValueRequest.SerializeToString,
            response_deserializer=worker_pb2.GetValueReply.FromString,
        )

    def put(self, key: str, value: bytes) -> None:
        """See `fdt.worker.runtime.MeetingPlace.put`."""
        with rpc.translated():
            request = worker_pb2.PutValueRequest(rendezvous=self._key, key=key, value=value)
            self._put(request, timeout=self._timing.call_s)

    def get(self, key: str) -> bytes | None:
        """See `fdt.worker.runtime.MeetingPlace.get`."""
        with rpc.translated():
            request = worker_pb2.GetValueRequest(rendezvous=self._key, key=key)
            reply: worker_pb2.GetValueReply = self._get(request, timeout=self._timing.call_s)
        return reply.value if reply.HasField("value") else None

    def wait(self, key: str, limit_s: float) -> bytes:
        """See `fdt.worker.runtime.MeetingPlace.wait`."""
        until_s = time.monotonic() + limit_s
        while (value := self.get(key)) is None:
            if time.monotonic() > until_s:
                raise WorkerError(f"Another process of the job did not say {key} within {limit_s:.0f} s.")
            time.sleep(_POLL_S)
        return value
