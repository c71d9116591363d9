"""Lets the processes of a job exchange a few small values, which the pool keeps until the job ends.

The values travel over the channel on which workers attach. The pool knows a process's job by the key of its assignment: a
worker can neither read nor set another job's values, even in the same pool.
"""

import socket
import threading
import time

import grpc

from fdt.base.config import Timing
from fdt.errors import ProtocolError, WorkerError
from fdt.transport import statuses
from fdt.v1 import worker_pb2
from fdt.worker import shared_memory

# Processes exchange addresses and file names: some hundred bytes each; for a ring, some hundred for each other rank.
MAX_KEYS = 16_384
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1 << 20
MAX_JOB_BYTES = 8 << 20
MAX_PAIR_BYTES = 1 << 10

# Seconds between two requests for a value that is not set yet.
_POLL_S = 0.02


class RendezvousTable:
    """The pool's side: the values of all jobs. May be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, _Values] = {}

    def open(self, job: str, num_workers: int) -> None:
        """Makes an empty table for a job."""
        with self._lock:
            self._values[job] = _Values(MAX_JOB_BYTES + MAX_PAIR_BYTES * num_workers**2)

    def close(self, job: str) -> None:
        """Deletes a job's values, if it has any."""
        with self._lock:
            self._values.pop(job, None)

    def put(self, job: str, key: str, value: bytes) -> None:
        """Sets a value.

        Raises:
            ProtocolError: The job has ended, or a bound on values is exceeded.
        """
        with self._lock:
            self._of(job).put(key, value)

    def get(self, job: str, key: str) -> bytes | None:
        """Returns a value; None if it is not set yet.

        Raises:
            ProtocolError: The job has ended.
        """
        with self._lock:
            return self._of(job).values.get(key)

    def _of(self, job: str) -> "_Values":
        if job not in self._values:
            raise ProtocolError(f"The job has ended, and its processes' values with it. Received: job={job}")
        return self._values[job]


class _Values:
    """The values of one job."""

    def __init__(self, max_bytes: int) -> None:
        self.values: dict[str, bytes] = {}
        self._max_bytes = max_bytes
        self._bytes = 0

    def put(self, key: str, value: bytes) -> None:
        if len(key.encode()) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            raise ProtocolError(
                f"Processes of a job exchange values of at most {MAX_VALUE_BYTES} bytes under keys of at most {MAX_KEY_BYTES}. "
                f"Received: key={key[:MAX_KEY_BYTES]!r}, {len(value)} bytes"
            )
        size = self._bytes + len(value) - len(self.values.get(key, b""))
        if size > self._max_bytes or (key not in self.values and len(self.values) >= MAX_KEYS):
            raise ProtocolError(
                f"The processes of a job of this size exchange at most {MAX_KEYS} values of {self._max_bytes} bytes in all. "
                f"Received: {len(self.values) + (key not in self.values)} values, {size} bytes"
            )
        self.values[key] = value
        self._bytes = size


class PoolRendezvous:
    """A process's side: implements `fdt.worker.runtime.Rendezvous` by calls of the pool."""

    def __init__(self, channel: grpc.Channel, timing: Timing, memories: socket.socket | None = None) -> None:
        """
        Args:
            channel: The channel on which the process has attached; it sends the key of the assignment.
            timing: `call_s` is each call's limit.
            memories: The connection to the fork server; see `fdt.worker.shared_memory`.
        """
        self._timing, self._memories = timing, memories
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
        with statuses.translated():
            request = worker_pb2.PutValueRequest(key=key, value=value)
            self._put(request, timeout=self._timing.call_s)

    def get(self, key: str) -> bytes | None:
        with statuses.translated():
            reply: worker_pb2.GetValueReply = self._get(
                worker_pb2.GetValueRequest(key=key), timeout=self._timing.call_s
            )
        return reply.value if reply.HasField("value") else None

    def wait(self, key: str, limit_s: float) -> bytes:
        until_s = time.monotonic() + limit_s
        while (value := self.get(key)) is None:
            if time.monotonic() > until_s:
                raise WorkerError(f"Another process of the job did not set {key} within {limit_s:.0f} s.")
            time.sleep(_POLL_S)
        return value

    def memory(self, key: str, num_bytes: int) -> int | None:
        return None if self._memories is None else shared_memory.asked(self._memories, key, num_bytes)
