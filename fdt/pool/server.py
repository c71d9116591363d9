"""The pool's end of the wire: thin servicers around the supervisor."""

import contextlib
import functools
import json
import os
import secrets
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from fdt import rpc, wire
from fdt.blobs import CHUNK_BYTES, BlobStore, Buffer, decode_data, describe, encode_data
from fdt.config import ServeConfig, Timing
from fdt.errors import CapacityError, FdtError, ProtocolError, VersionError
from fdt.folders import OwnFolder
from fdt.pool import hosts, jobs, lifecycle
from fdt.pool.door import Door
from fdt.pool.examiner import Examiner
from fdt.pool.hosts import JoinedHost
from fdt.pool.limits import Limits, cut, open_descriptors
from fdt.pool.relay import JobRelay, blobs_of
from fdt.pool.supervisor import Supervisor
from fdt.runtime import Launcher, find_launchers
from fdt.versions import versions
from protos import blobs_pb2, host_pb2, job_pb2, pool_pb2, program_pb2, worker_pb2

if TYPE_CHECKING:
    from fdt.pool.metrics import MetricsServer


# A service, who serves it, and which of its methods take and give bytes.
_Service = tuple[ServiceDescriptor, object, Iterable[str]]


class _Blobs:
    """`fdt.v1.Blobs`."""

    def __init__(self, store: BlobStore, limits: Limits, timing: Timing) -> None:
        self._store, self._limits, self._timing = store, limits, timing

    def FindMissing(self, request: blobs_pb2.FindMissingRequest, _: grpc.ServicerContext) -> blobs_pb2.FindMissingReply:
        if len(request.blobs) > self._limits.asked_blobs:
            raise CapacityError(
                f"One question may name {self._limits.asked_blobs:,} blobs. Received: {len(request.blobs):,} blobs"
            )
        return blobs_pb2.FindMissingReply(missing=[ref for ref in request.blobs if not self._store.has(ref)])

    def Put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        first = wire.decode(blobs_pb2.PutChunk, next(requests, b""))
        data = _prefixed(first.data, (decode_data(raw, blobs_pb2.PutChunk, 2) for raw in requests))
        self._store.put(first.blob, self._paced(data), context.peer())
        return blobs_pb2.PutReply(received_bytes=first.blob.size_bytes).SerializeToString()

    def Get(self, raw: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        for chunk in self._store.chunks(wire.decode(blobs_pb2.BlobRef, raw)):
            yield encode_data(chunk, 1)

    def _paced(self, chunks: Iterator[Buffer]) -> Iterator[Buffer]:
        """Ends an upload that is too slow over some time; that it pauses, the door sees."""
        least_bytes = int(self._limits.upload_bytes_s * self._timing.chunk_s)
        began_s, num_bytes = time.monotonic(), 0
        for chunk in chunks:
            yield chunk
            num_bytes += len(chunk)
            if time.monotonic() - began_s < self._timing.chunk_s:
                continue
            if num_bytes < least_bytes:
                raise CapacityError(
                    f"An upload brings at least {least_bytes:,} bytes in {self._timing.chunk_s:g} s. Received: "
                    f"{num_bytes:,} bytes"
                )
            began_s, num_bytes = time.monotonic(), 0


def _prefixed(first: bytes, rest: Iterator[memoryview]) -> Iterator[Buffer]:
    if first:
        yield first
    yield from rest


class _Jobs:
    """`fdt.v1.Jobs`: instructions and events pass through as they are."""

    def __init__(self, supervisor: Supervisor, examiner: Examiner) -> None:
        self._supervisor, self._examiner = supervisor, examiner

    def Train(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        relay = self._supervisor.submit(self._opening(next(requests, b"")))
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
        self._supervisor.post(lifecycle.JobRefused(time.time(), relay.job, "CapacityError", message))
        # Its thread may be in the middle of sending what nobody takes.
        context.cancel()

    def _gone(self, relay: JobRelay) -> None:
        self._supervisor.post(lifecycle.ClientGone(time.time(), relay.job))
        relay.end()
        relay.client.close(at_once=True)

    def _take(self, relay: JobRelay, requests: Iterator[bytes]) -> None:
        """Passes instructions on until the client ends or breaks the stream."""
        kind = None
        try:
            for raw in _until_broken(requests):
                kind = self._look_at(relay, raw)
                if kind == "fetched":
                    continue
                if kind == "run":
                    # What prepares the job is looked at and kept while it queues; its steps wait in the stream.
                    relay.assigned.wait()
                relay.instruct(raw)
        except FdtError as error:
            if isinstance(error, ProtocolError):
                relay.malformed = error
            self._supervisor.post(lifecycle.JobRefused(time.time(), relay.job, type(error).__name__, str(error)))
            return
        except Exception as error:  # whatever it is, it ends the job and is seen
            traceback.print_exc()
            message = f"The pool could not pass on an instruction: {type(error).__name__}: {error}"
            self._supervisor.post(lifecycle.JobRefused(time.time(), relay.job, "PoolError", message))
            return
        if kind != "close":
            self._supervisor.post(lifecycle.Cancelled(time.time(), relay.job))

    def _look_at(self, relay: JobRelay, raw: bytes) -> str | None:
        """Admits an instruction, and sees to it that the blobs it names stay; returns its kind."""
        instruction = wire.decode(job_pb2.Instruction, raw)
        kind = instruction.WhichOneof("kind")
        if kind == "load":
            relay.load_asked(instruction.load.program)
            self._need(relay, [instruction.load.blob])
            self._examiner.examine(self._supervisor.store, instruction.load.blob)
        elif kind == "bind":
            refs = [array.blob for array in instruction.bind.arrays]
            self._need(relay, refs)
            if instruction.bind.passing:
                relay.streamed(instruction.bind.data, refs)
        elif kind == "assign" and instruction.assign.state.payload.HasField("blob"):
            relay.assigned_blob(instruction.assign.state.payload.blob)
        elif kind == "run":
            refs = [batch.blob for batch in instruction.run.batches if batch.HasField("blob")]
            self._need(relay, refs)
            relay.reading(refs)
        elif kind == "drain":
            relay.drain_asked(instruction.drain.serial)
        elif kind == "fetched":
            self._supervisor.drop(relay.fetched(instruction.fetched.blobs))
        elif kind == "close":
            closing = lifecycle.Closing(time.time(), relay.job, instruction.close.exit_status)
            self._supervisor.post(closing)
        elif kind in (None, "open"):
            raise ProtocolError(f"An instruction that makes no sense here. Received: kind={kind}")
        return kind

    def _need(self, relay: JobRelay, refs: list[blobs_pb2.BlobRef]) -> None:
        store = self._supervisor.store
        store.use(relay.job, refs, self._supervisor.limits.job_blobs)
        for ref in refs:
            if not store.has(ref):
                raise ProtocolError(f"The pool does not hold this blob: upload it first. Received: {describe(ref)}")


class _Workers:
    """`fdt.v1.Workers`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def Attach(self, requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        first = wire.decode(worker_pb2.WorkerEvent, next(requests, b""))
        if not first.HasField("ready"):
            raise ProtocolError("A worker's first event must be `ready`.")
        name = first.ready.worker
        outbox = self._supervisor.attach(name)
        self._supervisor.post(lifecycle.WorkerReady(time.time(), name))
        threading.Thread(target=self._take, args=(name, requests), name=f"fdt-{name}-events", daemon=True).start()
        yield from outbox

    def PutValue(self, request: worker_pb2.PutValueRequest, _: grpc.ServicerContext) -> worker_pb2.PutValueReply:
        self._supervisor.meetings.put(request.meeting, request.key, request.value)
        return worker_pb2.PutValueReply()

    def GetValue(self, request: worker_pb2.GetValueRequest, _: grpc.ServicerContext) -> worker_pb2.GetValueReply:
        return worker_pb2.GetValueReply(value=self._supervisor.meetings.get(request.meeting, request.key))

    def _take(self, name: str, requests: Iterator[bytes]) -> None:
        try:
            # A broken stream needs no word: the process ends with it, or falls silent.
            for raw in _until_broken(requests):
                self._look_at(name, raw)
        except Exception as error:  # whatever it is, it ends the job and is seen; the worker is then silent
            if not isinstance(error, FdtError):
                traceback.print_exc()
            kind = type(error).__name__ if isinstance(error, FdtError) else "PoolError"
            message = f"The pool makes no sense of what worker {name} says: {error}"
            self._supervisor.post(lifecycle.WorkerFailed(time.time(), name, kind, message, time.time()))

    def _look_at(self, name: str, raw: bytes) -> None:
        event = wire.decode(worker_pb2.WorkerEvent, raw)
        self._supervisor.heard(name, event.heartbeat.sample if event.HasField("heartbeat") else None)
        if event.HasField("joined"):
            self._supervisor.post(lifecycle.WorkerJoined(time.time(), name))
        elif event.HasField("event"):
            self._pass_on(name, raw, event.event)

    def _pass_on(self, name: str, raw: bytes, event: job_pb2.Event) -> None:
        serving = self._supervisor.serving(name)
        if serving is None:
            return
        relay, rank = serving
        try:
            if rank == 0:
                self._supervisor.adopt(name, blobs_of(event))
            self._relay(name, relay, rank, raw, event)
        except FdtError as error:
            self._supervisor.post(lifecycle.JobRefused(time.time(), relay.job, type(error).__name__, str(error)))

    def _relay(self, name: str, relay: JobRelay, rank: int, raw: bytes, event: job_pb2.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "progress":
            relay.progress(rank, raw, event)
        elif kind == "results":
            relay.results(raw, event)
        elif kind == "loaded":
            relay.loaded(event)
        elif kind == "drained":
            drained = relay.drained(rank, event)
            if drained is not None:
                if drained.workers:
                    self._supervisor.account(relay.job, drained.workers)
                self._supervisor.drop(relay.served_blobs(drained))
        elif kind == "released":
            blobs = event.released.blobs
            refs = relay.read(blobs) if blobs else relay.released(event.released.data)
            self._supervisor.store.release(relay.job, refs)
            self._supervisor.drop(refs)
        elif kind == "closed":
            relay.closed(event, self._supervisor.host_of(name))
            self._supervisor.post(lifecycle.WorkerClosed(time.time(), name))
        elif kind == "failed":
            failed, limits = event.failed, self._supervisor.limits
            error, message = cut(failed.error, limits.name_bytes), cut(failed.message, limits.failure_bytes)
            self._supervisor.post(lifecycle.WorkerFailed(failed.time_s, name, error, message, time.time()))


class _Hosts:
    """`fdt.v1.Hosts`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def Attach(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = wire.decode(host_pb2.HostEvent, next(requests, b""))
        if not first.HasField("hello"):
            raise ProtocolError("A host's first event must be `hello`.")
        host = self._supervisor.join(first.hello)
        lost = functools.partial(self._gone, host, "was lost: its connection broke")
        if not context.add_callback(lost):
            lost()
        threading.Thread(target=self._take, args=(host, requests), name=f"fdt-{host.name}-events", daemon=True).start()
        yield from host.outbox

    def _gone(self, host: JoinedHost, reason: str) -> None:
        self._supervisor.post(lifecycle.HostGone(time.time(), host.name, reason))

    def _take(self, host: JoinedHost, requests: Iterator[bytes]) -> None:
        try:
            for raw in _until_broken(requests):
                host.heard_s = time.monotonic()
                event = wire.decode(host_pb2.HostEvent, raw)
                if event.HasField("exit"):
                    self._supervisor.exited_on(host, event.exit)
                elif event.HasField("goodbye"):
                    self._gone(host, "left the pool")
        except ProtocolError as error:
            self._gone(host, f"was sent away: {error}")
        except Exception as error:  # whatever it is, the host goes, and it is seen
            traceback.print_exc()
            self._gone(host, f"was sent away: the pool could not take what it said ({type(error).__name__}: {error})")


def _until_broken(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Passes messages on until their stream ends, in whatever way: gRPC raises a bare Exception when it has broken."""
    while True:
        try:
            raw = next(requests)
        except StopIteration:
            return
        except Exception:
            return
        yield raw


class _Pool:
    """`fdt.v1.Pool`."""

    def __init__(self, supervisor: Supervisor, config: ServeConfig) -> None:
        self._supervisor, self._config = supervisor, config
        # Told once the ports are open.
        self.listens: list[str] = []

    def Describe(self, request: pool_pb2.DescribeRequest, _: grpc.ServicerContext) -> pool_pb2.DescribeReply:
        check_version(request.versions)
        num_workers, num_free, num_warm = self._supervisor.load()
        return pool_pb2.DescribeReply(
            versions=versions(),
            modes=self._config.modes,
            num_workers=num_workers,
            num_warm=num_warm,
            num_free=num_free,
            listens=self.listens,
            network=self._config.network.cidr if self._config.network else "",
            hosts=self._supervisor.joined_hosts(),
        )

    def ListJobs(self, _: pool_pb2.ListJobsRequest, context: grpc.ServicerContext) -> pool_pb2.ListJobsReply:
        bound = self._supervisor.limits.listed_bytes
        return pool_pb2.ListJobsReply(jobs=[_summary(job, steps, bound) for job, steps in self._supervisor.list_jobs()])

    def GetLogs(self, request: pool_pb2.GetLogsRequest, _: grpc.ServicerContext) -> Iterator[pool_pb2.LogChunk]:
        for rank, log in enumerate(self._supervisor.logs(request.job)):
            yield pool_pb2.LogChunk(text=f"--- rank {rank}\n".encode())
            with contextlib.suppress(FileNotFoundError), open(log, "rb") as file:
                while text := file.read(CHUNK_BYTES):
                    yield pool_pb2.LogChunk(text=text)

    def CancelJob(self, request: pool_pb2.CancelJobRequest, _: grpc.ServicerContext) -> pool_pb2.CancelJobReply:
        found = [job for job, _ in self._supervisor.list_jobs() if job.name == request.job]
        if not found:
            raise ProtocolError(
                f"The pool knows no such job; `fdt jobs` lists them. Received: job={cut(request.job, 40)}"
            )
        self._supervisor.post(lifecycle.Cancelled(time.time(), request.job))
        state = found[0].state if found[0].state.ended else jobs.JobState.CANCELLED
        return pool_pb2.CancelJobReply(state=state.value)


def _summary(job: jobs.Job, steps: int, bound_bytes: int) -> pool_pb2.JobSummary:
    return pool_pb2.JobSummary(
        job=job.name,
        state=job.state.value,
        script=cut(job.script, bound_bytes),
        mode=job.mode,
        num_workers=job.num_workers,
        steps=steps,
        submitted_s=job.submitted_s,
        ended_s=job.ended_s,
        reason=job.reason,
    )


class _Health:
    """`grpc.health.v1.Health`."""

    def Check(self, _: health_pb2.HealthCheckRequest, __: grpc.ServicerContext) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


def check_version(client: program_pb2.Versions) -> None:
    """Refuses a client of another major or minor version.

    Raises:
        VersionError: It is one.
    """
    ours = versions().fdt
    if client.fdt and client.fdt.split(".")[:2] != ours.split(".")[:2]:
        raise VersionError(
            f"The pool runs fdt {ours}, the client fdt {client.fdt}. Install the same version on both sides."
        )


class Server:
    """A pool."""

    def __init__(
        self, config: ServeConfig, launchers: Mapping[str, Launcher] | None = None, directory: Path | None = None
    ) -> None:
        """Opens nothing yet.

        Args:
            config: The pool's.
            launchers: By mode; those that are installed if None.
            directory: For blobs, logs and the workers' socket, removed at the end; a new temporary one if None.

        Raises:
            UsageError: The configuration makes no sense, or would let strangers in.
        """
        tls = config.tls_cert is not None and config.tls_key is not None
        rpc.check_listen(config.listen, config.token, tls)
        hosts.check(config)
        self._config = config
        self._launchers = dict(launchers) if launchers is not None else find_launchers(config.modes)
        self._directory = directory
        self._folder: OwnFolder | None = None
        self._servers: list[grpc.Server] = []
        self._doors: list[Door] = []
        self._metrics: MetricsServer | None = None
        self._supervisor: Supervisor | None = None
        self._examiner: Examiner | None = None

    def start(self) -> str:
        """Begins to serve and to warm workers.

        Returns:
            The address, with the port that the system chose if 0 was asked for.
        """
        config, secret = self._config, secrets.token_hex(32)
        if self._directory is None:
            self._folder = OwnFolder("fdt-pool-")
            self._directory = self._folder.path
        directory = self._directory
        socket = f"unix:{directory}/workers.sock"
        supervisor = self._supervisor = Supervisor(config, self._launchers, directory, socket, secret)
        examiner = self._examiner = Examiner()
        pool = _Pool(supervisor, config)
        timing, limits = config.timing, config.limits
        workers = (worker_pb2.DESCRIPTOR.services_by_name["Workers"], _Workers(supervisor), {"Attach"})
        # Warm ones of each mode, those that are just ending, and what a job whose workers are on other hosts has here.
        num_processes = 4 * (config.num_workers + limits.jobs) * len(self._launchers)
        own = self._open([workers], Door(limits, timing, num_processes), secret)
        # A pool that takes no hosts lets one in at a time, to tell it why.
        joined = (hosts.MAX_JOINED_WORKERS, hosts.MAX_HOSTS) if config.network is not None else (1, 1)
        services: list[_Service] = [
            (blobs_pb2.DESCRIPTOR.services_by_name["Blobs"], _Blobs(supervisor.store, limits, timing), {"Put", "Get"}),
            (job_pb2.DESCRIPTOR.services_by_name["Jobs"], _Jobs(supervisor, examiner), {"Train"}),
            # Of hosts that joined.
            workers,
            (host_pb2.DESCRIPTOR.services_by_name["Hosts"], _Hosts(supervisor), {"Attach"}),
            (pool_pb2.DESCRIPTOR.services_by_name["Pool"], pool, ()),
            (health_pb2.DESCRIPTOR.services_by_name["Health"], _Health(), ()),
        ]
        public = self._open(services, Door(limits, timing, *joined), secret, open_descriptors(limits))
        if config.metrics is not None:
            # Not everybody has Prometheus's library.
            from fdt.pool.metrics import serve

            self._metrics = serve(config.metrics, supervisor.snapshot)
        # The machine's own workers have a server to themselves: whatever besets the public port does not keep them out.
        rpc.listen(own, socket)
        address = rpc.listen(public, config.listen, config.tls_cert, config.tls_key)
        pool.listens = [address, *([config.metrics] if config.metrics else [])]
        for server in self._servers:
            server.start()
        supervisor.start()
        return address

    @property
    def network(self) -> str:
        """Which network worker processes see, in one line, once this has started."""
        assert self._supervisor is not None
        return self._supervisor.network

    def _open(
        self, services: Iterable[_Service], door: Door, secret: str, connections: int | None = None
    ) -> grpc.Server:
        config = self._config
        blobs, workers = "fdt.v1.Blobs", "fdt.v1.Workers"
        # Workers on hosts that joined fetch blobs themselves, and do not know the clients' token.
        interceptor = rpc.RequireToken(config.token, {workers: (secret,), blobs: (config.token, secret)})
        server = rpc.create_server(interceptor, door, config.limits, config.timing, connections)
        server.add_generic_rpc_handlers(
            tuple(rpc.service(service, servicer, door, raw) for service, servicer, raw in services)
        )
        self._servers.append(server)
        self._doors.append(door)
        door.start()
        return server

    def wait(self) -> None:
        """Waits until the pool has ended.

        Raises:
            Exception: It ended because of this one, and not because `stop` was called.
        """
        assert self._supervisor is not None
        self._supervisor.wait()

    def stop(self) -> None:
        """Ends all jobs and processes, closes all ports, removes what was stored."""
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._examiner is not None:
            self._examiner.close()
        if self._metrics is not None:
            self._metrics.close()
        for stopped in [server.stop(0) for server in self._servers]:
            stopped.wait(self._config.timing.stop_s)
        for door in self._doors:
            door.close()
        if self._folder is not None:
            self._folder.remove()
        elif self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def main() -> None:
    """Runs a pool for the process that started this one: its configuration is the first line of standard input, and
    it lives until that ends."""
    fields = json.loads(sys.stdin.buffer.readline())
    directory = Path(fields.pop("directory"))
    timing, limits = Timing(**fields.pop("timing")), Limits(**fields.pop("limits"))
    config = ServeConfig(**{**fields, "modes": tuple(fields["modes"])}, timing=timing, limits=limits)
    server = Server(config, directory=directory)
    server.start()
    threading.Thread(target=_stop_with_parent, args=(server,), name="fdt-parent", daemon=True).start()
    try:
        server.wait()
    finally:
        server.stop()


def _stop_with_parent(server: Server) -> None:
    # Not by `sys.stdin`: its lock would be held when the interpreter ends for another reason.
    while os.read(0, 1 << 10):
        pass
    server.stop()


if __name__ == "__main__":
    main()
