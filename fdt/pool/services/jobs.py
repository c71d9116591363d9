"""Serves `fdt.v1.Jobs`: a stream for each job between its client and the pool."""

import functools
import threading
import time
from collections.abc import Iterator

import grpc

from fdt.base import log
from fdt.errors import CapacityError, FdtError, ProgramRefusedError, ProtocolError
from fdt.pool.access import Access
from fdt.pool.examiner import Examiner
from fdt.pool.relay import JobRelay
from fdt.pool.services.blobs import may_use
from fdt.pool.services.pool import check_version
from fdt.pool.services.streams import until_broken
from fdt.pool.state import events
from fdt.pool.supervisor import Supervisor
from fdt.transport import wire
from fdt.transport.blob_store import not_here
from fdt.transport.blobs import holding, named_by, read_by, streamed_by
from fdt.v1 import blobs_pb2, job_pb2

_READS_NOTHING = "the pool's workers read no files"


class Jobs:
    """The service `fdt.v1.Jobs`: checks a client's instructions, and passes instructions and events on unchanged."""

    def __init__(self, supervisor: Supervisor, examiner: Examiner, access: Access) -> None:
        self._supervisor, self._examiner, self._access = supervisor, examiner, access

    def Train(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        opening = self._opening(next(requests, b""))
        relay = self._supervisor.submit(opening, self._access.caller(context))
        script, mode, workers = opening.script, opening.mode, opening.num_workers
        self._access.did(context, "job opened", job=relay.job, script=script, mode=mode, workers=workers)
        relay.on_unread = functools.partial(self._unread, relay, context)
        gone = functools.partial(self._gone, relay)
        if not context.add_callback(gone):
            gone()
        name = f"fdt-{relay.job}-instructions"
        threading.Thread(target=self._take, args=(relay, requests), name=name, daemon=True).start()
        yield from relay.client
        if relay.malformed is not None:
            raise relay.malformed

    def _opening(self, raw: bytes) -> job_pb2.OpenJob:
        bound = self._supervisor.limits.opening_bytes
        if len(raw) > bound:
            raise CapacityError(
                f"The first instruction of a job may have {bound:,} bytes. Received: {len(raw):,} bytes"
            )
        first = wire.decode(job_pb2.Instruction, raw)
        if not first.HasField("open"):
            raise ProtocolError("The first instruction of a job must be `open`.")
        check_version(first.open.versions)
        return first.open

    def _unread(self, relay: JobRelay, context: grpc.ServicerContext, bound: str) -> None:
        message = f"The client does not read what the pool sends it: more than {bound} waited for it."
        self._supervisor.post(events.JobRefused(time.time(), relay.job, "CapacityError", message))
        # The stream's thread may be blocked in sending to this client.
        context.cancel()

    def _gone(self, relay: JobRelay) -> None:
        self._supervisor.post(events.ClientGone(time.time(), relay.job))
        relay.end()
        relay.client.close(at_once=True)

    def _take(self, relay: JobRelay, requests: Iterator[bytes]) -> None:
        """Passes instructions on until the client ends or breaks the stream."""
        # After `close` a client may still report blobs that it has fetched.
        said_goodbye = False
        try:
            for raw in until_broken(requests):
                kind = self._look_at(relay, raw)
                said_goodbye |= kind == "close"
                if kind in ("fetched", "shown", None):
                    continue
                if kind == "run":
                    # Instructions that prepare the job are checked and kept while it queues; its steps wait in the stream.
                    relay.assigned.wait()
                relay.instruct(raw)
        except FdtError as error:
            if isinstance(error, ProtocolError):
                relay.malformed = error
            if isinstance(error, ProgramRefusedError):
                caller = relay.caller.label
                self._access.audit.write("program refused", caller, job=relay.job, reason=str(error))
            self._supervisor.post(events.JobRefused(time.time(), relay.job, type(error).__name__, str(error)))
            return
        except Exception as error:  # any error ends the job, and is logged
            log.crashed()
            message = f"The pool could not pass on an instruction: {type(error).__name__}: {error}"
            self._supervisor.post(events.JobRefused(time.time(), relay.job, "PoolError", message))
            return
        if not said_goodbye:
            self._supervisor.post(events.Cancelled(time.time(), relay.job))

    def _look_at(self, relay: JobRelay, raw: bytes) -> str | None:
        """Checks an instruction, and marks the blobs that it names as in use.

        Returns:
            Its kind; None if the pool has answered it.
        """
        instruction = wire.decode(job_pb2.Instruction, raw)
        kind = instruction.WhichOneof("kind")
        if kind == "load":
            relay.load_asked(instruction.load.program)
            self._need(relay, [instruction.load.blob])
            self._examiner.examine(self._supervisor.store, instruction.load.blob)
        elif kind == "bind":
            refs = named_by(instruction.bind)
            self._need(relay, refs)
            if instruction.bind.HasField("read"):
                return kind if self._take_rows(relay, instruction.bind) else None
        elif kind == "assign":
            refs = holding(instruction.assign.state)
            self._check_use(relay, refs)
            relay.assigned_blobs(refs)
        elif kind == "run":
            read, streamed = read_by(instruction.run), streamed_by(instruction.run)
            self._need(relay, [*read, *streamed])
            relay.reading(read)
            if streamed:
                relay.streamed(instruction.run.data, streamed)
        elif kind == "drain":
            relay.drain_asked(instruction.drain.serial, instruction.drain.keep)
        elif kind == "fetched":
            self._supervisor.hosts.drop(relay.fetched(instruction.fetched.blobs))
            self._supervisor.blobs.let_go(relay.session, instruction.fetched.blobs)
        elif kind == "shown":
            self._supervisor.seen.shown(relay.job, instruction.shown.values, time.time())
        elif kind == "close":
            closing = events.Closing(time.time(), relay.job, instruction.close.exit_status)
            self._supervisor.post(closing)
        elif kind in (None, "open"):
            raise ProtocolError(f"An instruction of this kind is not allowed here. Received: kind={kind}")
        return kind

    def _take_rows(self, relay: JobRelay, bind: job_pb2.BindData) -> bool:
        """Checks a data set whose rows are files; returns whether the workers are to look at these."""
        if not self._supervisor.reads_files:
            relay.tell(job_pb2.Event(bound=job_pb2.Bound(data=bind.data, missing=_READS_NOTHING)))
            return False
        self._examiner.examine(self._supervisor.store, bind.read.function, of_rows=True)
        relay.bind_asked(bind.data)
        return True

    def _check_use(self, relay: JobRelay, refs: list[blobs_pb2.BlobRef]) -> None:
        for ref in refs:
            if not may_use(self._supervisor.store, relay.caller, ref):
                raise not_here(ref)

    def _need(self, relay: JobRelay, refs: list[blobs_pb2.BlobRef]) -> None:
        self._check_use(relay, refs)
        store = self._supervisor.store
        store.use(relay.job, refs, self._supervisor.limits.job_blobs)
        for ref in refs:
            if not store.has(ref):
                raise not_here(ref)
