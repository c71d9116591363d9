"""Serves `fdt.v1.Workers`: a stream for each worker, and the rendezvous and blobs of its job."""

import functools
import threading
import time
from collections.abc import Iterator

import grpc

from fdt.base import log
from fdt.base.failure import failed_step
from fdt.base.limits import cut
from fdt.errors import FdtError, ProtocolError
from fdt.pool.relay import JobRelay, blobs_of
from fdt.pool.services.blobs import Blobs
from fdt.pool.services.streams import until_broken
from fdt.pool.state import events
from fdt.pool.supervisor import Supervisor
from fdt.pool.worker_keys import WorkerKeys
from fdt.transport import rpc, wire
from fdt.transport.blobs import ONE_TIME_BYTES, describe
from fdt.transport.drained import only_rows
from fdt.v1 import blobs_pb2, job_pb2, worker_pb2


class Workers:
    """The service `fdt.v1.Workers` on one port."""

    def __init__(self, supervisor: Supervisor, keys: WorkerKeys, blobs: Blobs) -> None:
        """
        Args:
            supervisor: The pool's supervisor.
            keys: The keys of the workers that attach on this port.
            blobs: Takes and sends the workers' blobs.
        """
        self._supervisor, self._keys, self._blobs = supervisor, keys, blobs

    def Attach(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = wire.decode(worker_pb2.WorkerEvent, next(requests, b""))
        if not first.HasField("ready"):
            raise ProtocolError("A worker's first event must be `ready`.")
        name = first.ready.worker
        self._keys.attach(name, rpc.given_token(context))
        gone = functools.partial(self._keys.forget, name)
        if not context.add_callback(gone):
            gone()
        outbox = self._supervisor.attach(name)
        self._supervisor.post(events.WorkerReady(time.time(), name))
        threading.Thread(target=self._take, args=(name, requests), name=f"fdt-{name}-events", daemon=True).start()
        yield from outbox

    def PutValue(self, request: worker_pb2.PutValueRequest, context: grpc.ServicerContext) -> worker_pb2.PutValueReply:
        self._supervisor.rendezvous_table.put(self._job(context), request.key, request.value)
        return worker_pb2.PutValueReply()

    def GetValue(self, request: worker_pb2.GetValueRequest, context: grpc.ServicerContext) -> worker_pb2.GetValueReply:
        return worker_pb2.GetValueReply(value=self._supervisor.rendezvous_table.get(self._job(context), request.key))

    def PutBlob(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        owner = self._supervisor.owner(self._job(context))
        return self._blobs.take(requests, context.peer(), owner, _check_serves_once)

    def GetBlob(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        ref = wire.decode(blobs_pb2.BlobRef, raw)
        if not self._supervisor.job_needs(self._job(context), ref):
            raise ProtocolError(f"A worker may fetch only blobs that its job uses. Received: {describe(ref)}")
        return self._blobs.give(ref)

    def _job(self, context: grpc.ServicerContext) -> str:
        return self._keys.bearer(rpc.given_token(context)).job

    def _take(self, name: str, requests: Iterator[bytes]) -> None:
        try:
            # A broken stream is not reported here: the pool notices that the process has ended or is silent.
            for raw in until_broken(requests):
                self._look_at(name, raw)
        except Exception as error:  # any error ends the job, and is logged; the worker then falls silent
            if not isinstance(error, FdtError):
                log.crashed()
            kind = type(error).__name__ if isinstance(error, FdtError) else "PoolError"
            message = f"The pool could not handle a message of worker {name}: {error}"
            self._supervisor.post(events.WorkerFailed(time.time(), name, kind, message, time.time()))

    def _look_at(self, name: str, raw: bytes) -> None:
        event = wire.decode(worker_pb2.WorkerEvent, raw)
        self._supervisor.heard(name, event.heartbeat if event.HasField("heartbeat") else None)
        if event.HasField("joined"):
            self._supervisor.post(events.WorkerJoined(time.time(), name))
        elif event.HasField("event"):
            self._pass_on(name, raw, event.event)

    def _pass_on(self, name: str, raw: bytes, event: job_pb2.Event) -> None:
        serving = self._supervisor.serving(name)
        if serving is None:
            return
        relay, rank = serving
        try:
            if rank and event.HasField("drained"):
                only_rows(event.drained)
            if rank == 0 or event.HasField("drained"):
                self._supervisor.blobs.adopt(name, blobs_of(event), relay.caller.name)
                if relay.keeps(event):
                    self._supervisor.blobs.keep(relay.session, blobs_of(event))
            self._relay(name, relay, rank, raw, event)
        except FdtError as error:
            self._supervisor.post(events.JobRefused(time.time(), relay.job, type(error).__name__, str(error)))

    def _relay(self, name: str, relay: JobRelay, rank: int, raw: bytes, event: job_pb2.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "progress":
            relay.progress(rank, raw, event)
        elif kind == "results":
            relay.results(raw, event)
        elif kind == "loaded":
            relay.loaded(event)
        elif kind == "bound":
            missing = cut(event.bound.missing, self._supervisor.limits.failure_bytes)
            relay.bound(job_pb2.Bound(data=event.bound.data, missing=missing))
        elif kind == "drained":
            drained = relay.drained(rank, event)
            if drained is not None:
                if drained.workers:
                    self._supervisor.seen.accounted(relay.job, drained.workers, time.time())
                self._supervisor.hosts.drop(relay.served_blobs(drained))
        elif kind == "released":
            blobs = event.released.blobs
            refs = relay.read(blobs) if blobs else relay.released(event.released.data)
            self._supervisor.store.release(relay.job, refs)
            self._supervisor.hosts.drop(refs)
        elif kind == "closed":
            relay.closed(event, self._supervisor.host_of(name))
            self._supervisor.post(events.WorkerClosed(time.time(), name))
        elif kind == "failed":
            failed, limits = event.failed, self._supervisor.limits
            error, message = cut(failed.error, limits.name_bytes), cut(failed.message, limits.failure_bytes)
            step = failed_step(failed)
            self._supervisor.post(events.WorkerFailed(failed.time_s, name, error, message, time.time(), step))


def _check_serves_once(ref: blobs_pb2.BlobRef) -> None:
    # Under a content digest as its name, a worker's blob could replace content that other jobs rely on.
    if len(ref.digest) != ONE_TIME_BYTES:
        raise ProtocolError(f"A worker's blob must have a one-time name. Received: {describe(ref)}")
