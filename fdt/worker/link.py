"""Connects a worker to its pool by a stream, and perhaps to its client: receives instructions, sends events and heartbeats."""

import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from fdt.base.config import Credentials
from fdt.base.sampler import Sampler, Series
from fdt.errors import ProtocolError
from fdt.transport import rpc, statuses
from fdt.transport.direct import MAX_BYTES, Listener
from fdt.v1 import job_pb2, worker_pb2
from fdt.worker.gateway import Gateway
from fdt.worker.inbox import Inbox
from fdt.worker.worker_config import WorkerConfig

# Seconds between two looks whether a client still is there, which has no room for an answer.
_ROOM_S = 1.0


class Link:
    """The stream to the pool. Any thread may send events; a thread of the link queues received instructions."""

    def __init__(
        self, config: WorkerConfig, secret: int, gateway: Gateway | None = None, listener: Listener | None = None
    ) -> None:
        """Attaches to the pool.

        Args:
            config: The worker's settings.
            secret: The descriptor of a pipe, from which the secret is read and which is then closed.
            gateway: Connects this process to the pool if its network does not reach the pool; None if it does.
            listener: See `Inbox`.
        """
        self._config = config
        self._outgoing: queue.SimpleQueue[worker_pb2.WorkerEvent | None] = queue.SimpleQueue()
        self._incoming = Inbox(listener)
        self._stop = threading.Event()
        self.series = Series()
        # Called before each heartbeat, in its thread; returns the heartbeat's `idle_s`.
        self.on_beat: Callable[[job_pb2.Sample], float] = lambda sample: 0.0
        credentials = Credentials(tls_ca=Path(config.tls_ca) if config.tls_ca is not None else None)
        pool, behind = config.pool, None
        if gateway is not None and config.joined:
            pool, behind = gateway.to_pool(config.pool), config.pool
        with open(secret, encoding="ascii") as pipe:
            self._proof = rpc.SendToken(pipe.read())
        self._channel = rpc.open_channel(pool, credentials, config.timing, behind)
        self.channel = grpc.intercept_channel(self._channel, self._proof)
        attach = self.channel.stream_stream(
            "/fdt.v1.Workers/Attach",
            request_serializer=worker_pb2.WorkerEvent.SerializeToString,
            response_deserializer=worker_pb2.WorkerInstruction.FromString,
        )
        # This call has no deadline, since it lasts as long as the worker: missing heartbeats show a failure.
        self._call: Any = attach(self._events())
        # The secret is used up: the pool no longer accepts it.
        self._proof.token = ""
        self._threads = [
            threading.Thread(target=self._receive, name="fdt-receive", daemon=True),
            threading.Thread(target=self._beat, name="fdt-heartbeat", daemon=True),
        ]

    def start(self) -> None:
        """Starts the threads that receive and send heartbeats."""
        for thread in self._threads:
            thread.start()

    def serve(self, key: str) -> None:
        """Authenticates further calls by an assignment's key."""
        self._proof.token = key

    def send(self, event: worker_pb2.WorkerEvent) -> None:
        """Queues an event for the pool."""
        self._outgoing.put(event)

    def send_directly(self, event: job_pb2.Event) -> bool:
        """Sends an event past the pool; returns False if the client has no connection, or no room now."""
        direct = self._incoming.direct
        if direct is None:
            return False
        raw = event.SerializeToString()
        return len(raw) <= MAX_BYTES and direct.send(raw)

    def answer_directly(self, event: job_pb2.Event) -> None:
        """Sends an event past the pool, and waits for room; does nothing if the client is gone.

        Raises:
            ProtocolError: The event is too large: the client should have asked by the pool.
        """
        raw = event.SerializeToString()
        if len(raw) > MAX_BYTES:
            raise ProtocolError(f"A direct answer has at most {MAX_BYTES} bytes. Asked for: {len(raw)} bytes")
        while (direct := self._incoming.direct) is not None and not direct.send(raw):
            select.select([], [direct], [], _ROOM_S)

    def receive(self, limit_s: float | None = None) -> worker_pb2.WorkerInstruction | None:
        """Returns the next instruction, or None at the end of the stream.

        Raises:
            queue.Empty: Nothing came within `limit_s`.
        """
        return self._incoming.get(limit_s)

    def close(self) -> None:
        """Ends the stream and the threads."""
        self._stop.set()
        self._outgoing.put(None)
        self._call.cancel()
        for thread in self._threads:
            thread.join(self._config.timing.stop_s)
        self._channel.close()

    def _events(self) -> Iterator[worker_pb2.WorkerEvent]:
        while (event := self._outgoing.get()) is not None:
            yield event

    def _receive(self) -> None:
        try:
            for instruction in self._call:
                self._incoming.put(instruction)
        except grpc.RpcError as error:
            if not self._stop.is_set():
                print(
                    f"fdt worker {self._config.name}: the pool is gone: {statuses.from_rpc_error(error)}",
                    file=sys.stderr,
                )
        self._incoming.put(None)
        # The main thread may be in a step that never ends.
        if not self._stop.wait(self._config.timing.stop_s):
            os._exit(1)

    def _beat(self) -> None:
        sampler = Sampler()
        while not self._stop.wait(self._config.timing.heartbeat_s):
            sample = sampler.take()
            self.series.add(sample)
            heartbeat = worker_pb2.Heartbeat(sample=sample, idle_s=self.on_beat(sample))
            self.send(worker_pb2.WorkerEvent(heartbeat=heartbeat))
