"""The pool's end of the wire: thin servicers around the supervisor."""

import contextlib
import functools
import json
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2

from fdt import rpc, wire
from fdt.blobs import CHUNK_BYTES, BlobStore, decode_data, describe, encode_data, flat
from fdt.config import ServeConfig, Timing
from fdt.errors import FdtError, ProtocolError, VersionError
from fdt.pool import admission, hosts, jobs, lifecycle
from fdt.pool.hosts import JoinedHost
from fdt.pool.relay import JobRelay
from fdt.pool.state import MAX_QUEUED
from fdt.pool.supervisor import Supervisor
from fdt.runtime import Launcher, find_launchers
from fdt.versions import versions
from protos import blobs_pb2, host_pb2, job_pb2, pool_pb2, program_pb2, worker_pb2

if TYPE_CHECKING:
    from fdt.pool.metrics import MetricsServer

# The longest path that a unix socket can have is 107 bytes.
_MAX_DIRECTORY = 80


class _Blobs:
    """`fdt.v1.Blobs`."""

    def __init__(self, store: BlobStore, timing: Timing) -> None:
        self._store, self._timing = store, timing

    def FindMissing(self, request: blobs_pb2.FindMissingRequest, _: grpc.ServicerContext) -> blobs_pb2.FindMissingReply:
        return blobs_pb2.FindMissingReply(missing=[ref for ref in request.blobs if not self._store.has(ref)])

    def Put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with rpc.Watch(context.cancel, self._timing.chunk_s) as watch:
            chunks = watch.each(requests)
            first = wire.decode(blobs_pb2.PutChunk, next(chunks, b""))
            data = (decode_data(raw, blobs_pb2.PutChunk, 2) for raw in chunks)
            self._store.put(first.blob, _prefixed(first.data, data))
        return blobs_pb2.PutReply(received_bytes=first.blob.size_bytes).SerializeToString()

    def Get(self, raw: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        content = flat(self._store.open(wire.decode(blobs_pb2.BlobRef, raw)))
        for start in range(0, len(content), CHUNK_BYTES):
            yield encode_data(content[start : start + CHUNK_BYTES], 1)


def _prefixed(first: bytes, rest: Iterator[memoryview]) -> Iterator[bytes | memoryview]:
    if first:
        yield first
    yield from rest


class _Jobs:
    """`fdt.v1.Jobs`: instructions and events pass through as they are."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def Train(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = wire.decode(job_pb2.Instruction, next(requests, b""))
        if not first.HasField("open"):
            raise ProtocolError("The first instruction of a job must be `open`.")
        check_version(first.open.versions)
        relay = self._supervisor.submit(first.open)
        gone = functools.partial(self._gone, relay)
        if not context.add_callback(gone):
            gone()
        name = f"fdt-{relay.job}-instructions"
        threading.Thread(target=self._take, args=(relay, requests), name=name, daemon=True).start()
        yield from relay.client
        if relay.malformed is not None:
            raise relay.malformed

    def _gone(self, relay: JobRelay) -> None:
        self._supervisor.post(lifecycle.ClientGone(time.time(), relay.job))
        relay.end()

    def _take(self, relay: JobRelay, requests: Iterator[bytes]) -> None:
        """Passes instructions on until the client ends or breaks the stream."""
        kind = None
        try:
            for raw in requests:
                kind = self._look_at(relay, raw)
                if kind == "run":
                    # What prepares the job is looked at and kept while it queues; its steps wait in the stream.
                    relay.assigned.wait()
                relay.instruct(raw)
        except FdtError as error:
            if isinstance(error, ProtocolError):
                relay.malformed = error
            self._supervisor.post(lifecycle.JobRefused(time.time(), relay.job, type(error).__name__, str(error)))
            return
        except Exception:  # gRPC raises a bare Exception when the stream has broken
            return
        if kind != "close":
            self._supervisor.post(lifecycle.Cancelled(time.time(), relay.job))

    def _look_at(self, relay: JobRelay, raw: bytes) -> str | None:
        """Admits an instruction, and sees to it that the blobs it names stay; returns its kind."""
        instruction = wire.decode(job_pb2.Instruction, raw)
        kind = instruction.WhichOneof("kind")
        if kind == "load":
            self._need(relay, [instruction.load.blob])
            content = self._supervisor.store.open(instruction.load.blob)
            admission.admit(wire.decode(program_pb2.StepProgram, content.tobytes()))
        elif kind == "bind":
            refs = [array.blob for array in instruction.bind.arrays]
            self._need(relay, refs)
            if instruction.bind.passing:
                relay.streamed(instruction.bind.data, refs)
        elif kind == "assign" and instruction.assign.state.payload.HasField("blob"):
            relay.assigned_blob(instruction.assign.state.payload.blob)
        elif kind == "drain":
            relay.drain_asked(instruction.drain.serial)
        elif kind in (None, "open"):
            raise ProtocolError(f"An instruction that makes no sense here. Received: kind={kind}")
        return kind

    def _need(self, relay: JobRelay, refs: list[blobs_pb2.BlobRef]) -> None:
        store = self._supervisor.store
        store.use(relay.job, refs)
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

    def _take(self, name: str, requests: Iterator[bytes]) -> None:
        # A broken stream needs no word: the process ends with it, or falls silent.
        with contextlib.suppress(Exception):
            for raw in requests:
                event = worker_pb2.WorkerEvent.FromString(raw)
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
            refs = relay.released(event.released.data)
            self._supervisor.store.release(relay.job, refs)
            self._supervisor.drop(refs)
        elif kind == "closed":
            relay.closed(event, self._supervisor.host_of(name))
            self._supervisor.post(lifecycle.WorkerClosed(time.time(), name))
        elif kind == "failed":
            failed = event.failed
            self._supervisor.post(
                lifecycle.WorkerFailed(failed.time_s, name, failed.error, failed.message, time.time())
            )


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
            for raw in requests:
                host.heard_s = time.monotonic()
                event = wire.decode(host_pb2.HostEvent, raw)
                if event.HasField("exit"):
                    self._supervisor.exited_on(host, event.exit)
                elif event.HasField("goodbye"):
                    self._gone(host, "left the pool")
        except ProtocolError as error:
            self._gone(host, f"was sent away: {error}")
        except Exception:  # gRPC raises a bare Exception when the stream has broken
            return


class _Pool:
    """`fdt.v1.Pool`."""

    def __init__(self, supervisor: Supervisor, config: ServeConfig) -> None:
        self._supervisor, self._config = supervisor, config

    def Describe(self, request: pool_pb2.DescribeRequest, _: grpc.ServicerContext) -> pool_pb2.DescribeReply:
        check_version(request.versions)
        num_workers, num_free, num_warm = self._supervisor.load()
        return pool_pb2.DescribeReply(
            versions=versions(),
            modes=self._config.modes,
            num_workers=num_workers,
            num_warm=num_warm,
            num_free=num_free,
        )

    def ListJobs(self, _: pool_pb2.ListJobsRequest, context: grpc.ServicerContext) -> pool_pb2.ListJobsReply:
        return pool_pb2.ListJobsReply(jobs=[_summary(job, steps) for job, steps in self._supervisor.list_jobs()])

    def GetLogs(self, request: pool_pb2.GetLogsRequest, _: grpc.ServicerContext) -> Iterator[pool_pb2.LogChunk]:
        for rank, log in enumerate(self._supervisor.logs(request.job)):
            yield pool_pb2.LogChunk(text=f"--- rank {rank}\n".encode())
            with contextlib.suppress(FileNotFoundError), open(log, "rb") as file:
                while text := file.read(CHUNK_BYTES):
                    yield pool_pb2.LogChunk(text=text)

    def CancelJob(self, request: pool_pb2.CancelJobRequest, _: grpc.ServicerContext) -> pool_pb2.CancelJobReply:
        found = [job for job, _ in self._supervisor.list_jobs() if job.name == request.job]
        if not found:
            raise ProtocolError(f"The pool knows no such job; `fdt jobs` lists them. Received: job={request.job}")
        self._supervisor.post(lifecycle.Cancelled(time.time(), request.job))
        state = found[0].state if found[0].state.ended else jobs.JobState.CANCELLED
        return pool_pb2.CancelJobReply(state=state.value)


def _summary(job: jobs.Job, steps: int) -> pool_pb2.JobSummary:
    return pool_pb2.JobSummary(
        job=job.name,
        state=job.state.value,
        script=job.script,
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
        self._server: grpc.Server | None = None
        self._metrics: MetricsServer | None = None
        self._supervisor: Supervisor | None = None
        self._stopped = threading.Event()

    def start(self) -> str:
        """Begins to serve and to warm workers.

        Returns:
            The address, with the port that the system chose if 0 was asked for.
        """
        config, secret = self._config, secrets.token_hex(32)
        directory = self._directory = self._directory or _new_directory()
        socket = f"unix:{directory}/workers.sock"
        supervisor = self._supervisor = Supervisor(config, self._launchers, directory, socket, secret)
        workers = worker_pb2.DESCRIPTOR.services_by_name["Workers"]
        # Clients' streams that wait or run, two threads' worth of workers, and short calls.
        num_workers, num_hosts = config.num_workers, 0
        if config.network is not None:
            num_workers, num_hosts = num_workers + hosts.MAX_JOINED_WORKERS, hosts.MAX_HOSTS
        max_calls = MAX_QUEUED + 64 + 4 * num_workers * len(self._launchers) + 2 * num_hosts
        blobs = blobs_pb2.DESCRIPTOR.services_by_name["Blobs"]
        # Workers on hosts that joined fetch blobs themselves, and do not know the clients' token.
        tokens = {workers.full_name: (secret,), blobs.full_name: (config.token, secret)}
        interceptor = rpc.RequireToken(config.token, tokens)
        server = self._server = rpc.create_server(interceptor, max_calls, config.timing)
        server.add_generic_rpc_handlers(
            (
                rpc.service(blobs, _Blobs(supervisor.store, config.timing), {"Put", "Get"}),
                rpc.service(job_pb2.DESCRIPTOR.services_by_name["Jobs"], _Jobs(supervisor), {"Train"}),
                rpc.service(workers, _Workers(supervisor), {"Attach"}),
                rpc.service(host_pb2.DESCRIPTOR.services_by_name["Hosts"], _Hosts(supervisor), {"Attach"}),
                rpc.service(pool_pb2.DESCRIPTOR.services_by_name["Pool"], _Pool(supervisor, config)),
                rpc.service(health_pb2.DESCRIPTOR.services_by_name["Health"], _Health()),
            )
        )
        if config.metrics is not None:
            # Not everybody has Prometheus's library.
            from fdt.pool.metrics import serve

            self._metrics = serve(config.metrics, supervisor.snapshot)
        rpc.listen(server, socket)
        address = rpc.listen(server, config.listen, config.tls_cert, config.tls_key)
        server.start()
        supervisor.start()
        return address

    def wait(self) -> None:
        """Waits until `stop` has been called."""
        self._stopped.wait()

    def stop(self) -> None:
        """Ends all jobs and processes, closes all ports, removes what was stored."""
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._metrics is not None:
            self._metrics.close()
        if self._server is not None:
            self._server.stop(0).wait(self._config.timing.stop_s)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._stopped.set()


def _new_directory() -> Path:
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="fdt-pool-", dir=parent if len(parent) <= _MAX_DIRECTORY else "/tmp"))


def main() -> None:
    """Runs a pool for the process that started this one: its configuration is the first line of standard input, and
    it lives until that ends."""
    fields = json.loads(sys.stdin.buffer.readline())
    directory = Path(fields.pop("directory"))
    config = ServeConfig(**{**fields, "modes": tuple(fields["modes"]), "timing": Timing(**fields["timing"])})
    server = Server(config, directory=directory)
    server.start()
    sys.stdin.buffer.read()
    server.stop()


if __name__ == "__main__":
    main()
