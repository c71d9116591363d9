"""What one client, or a stranger without a token, tries on a pool: it is bounded, others are served, all is back afterwards."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from fdt.base.config import Credentials, ServeConfig, Timing
from fdt.base.limits import Limits
from fdt.base.versions import versions
from fdt.client.job_stream import JobStream
from fdt.errors import CapacityError, FdtError, JobError, PoolUnreachableError
from fdt.pool.server import Server
from fdt.transport import rpc
from fdt.transport.blob_client import BlobClient
from fdt.transport.blobs import reference
from fdt.v1 import blobs_pb2, job_pb2, pool_pb2, pool_pb2_grpc
from tests.helpers.ends import wait_gone
from tests.helpers.toy_engine import ROOT, ToyLauncher
from tests.helpers.train_stream import LIMIT_S, TrainStream

TIMING = Timing(connect_s=10.0, call_s=10.0, warm_s=30.0, heartbeat_s=0.1, heartbeat_limit_s=5.0, chunk_s=1.0)
TOKEN = "a token for these tests"
# Everything that can be tried in a moment is small; what an honest client of these tests needs fits.
LIMITS = Limits(
    connections=20,
    handshake_s=0.5,
    first_message_s=0.5,
    silent_calls=8,
    jobs=12,
    jobs_each=6,
    uploads_each=2,
    opening_bytes=2000,
    script_bytes=500,
    name_bytes=50,
    early_bytes=1 << 20,
    unread_bytes=1 << 20,
    pending=10,
    job_blobs=20,
    asked_blobs=30,
    remembered_jobs=5,
)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class Pool:
    """A server in this process, and a channel to it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        config = ServeConfig(listen="127.0.0.1:0", token=TOKEN, num_workers=2, timing=TIMING, limits=limits)
        self.server = Server(config, {"sync": ToyLauncher()})
        self.address = self.server.start()
        self.channel = self.connect()

    @property
    def supervisor(self):
        assert self.server._supervisor is not None
        return self.server._supervisor

    def connect(self) -> grpc.Channel:
        return rpc.connect(self.address, Credentials(TOKEN), TIMING)

    def close(self) -> None:
        self.channel.close()
        self.server.stop()

    def train(self, num_workers: int = 1, **options: str) -> TrainStream:
        return TrainStream(self.channel, num_workers, options)

    def opened(self, opening: job_pb2.OpenJob) -> TrainStream:
        raw = job_pb2.Instruction(open=opening).SerializeToString()
        return TrainStream(self.channel, 1, {}, opening=raw)

    def jobs(self) -> dict[str, pool_pb2.JobSummary]:
        stub = pool_pb2_grpc.PoolStub(self.channel)
        return {job.job: job for job in stub.ListJobs(pool_pb2.ListJobsRequest(), timeout=LIMIT_S).jobs}

    def serves(self) -> None:
        """A client of its own finds the pool, trains a job to its end, and is told what it should be."""
        with self.connect() as channel:
            stream = TrainStream(channel, 2, {})
            assert stream.drain().steps == 0
            stream.close()
            assert stream.status() == grpc.StatusCode.OK


@pytest.fixture(scope="module", autouse=True)
def _import_toy_engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module")
def shared() -> Iterator[Pool]:
    """One for those that look at nothing of it but what they have done themselves."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def until(true: Callable[[], bool], what: Callable[[], object]) -> None:
    """Waits for what other threads bring about."""
    end_s = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not true():
        assert time.monotonic() < end_s, what()
        pause.wait(0.02)


def details(call: grpc.Call) -> str:
    return f"{call.code()}: {call.details()}"


# ---- connections ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def strangers(address: str, number: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Raw connections that say this, and then nothing."""
    host, port = address.split(":")
    with contextlib.ExitStack() as all_of_them:
        found = []
        for _ in range(number):
            one = all_of_them.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
            with contextlib.suppress(OSError):
                one.sendall(first)
            found.append(one)
        yield found


def hung_up(connection: socket.socket) -> bool:
    """Waits until the other end hangs up; fails after a while."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_connections_that_say_nothing_are_dropped(pool: Pool) -> None:
    # A worker that is ready keeps a connection; and what gRPC opens for the first connections of a process, it keeps, too.
    until(lambda: pool.supervisor.load()[2] == 2, lambda: pool.supervisor.load())
    with strangers(pool.address, 200, b"") as first:
        pool.serves()
        assert all(map(hung_up, first))
    before = psutil.Process().num_fds()
    with strangers(pool.address, 200, b"") as silent:
        pool.serves()
        assert all(map(hung_up, silent))
    pool.serves()
    # Others of this process come and go; two hundred would show.
    until(lambda: psutil.Process().num_fds() < before + 50, lambda: psutil.Process().open_files())


def test_workers_come_in_while_strangers_hold_the_public_port(shared: Pool) -> None:
    """Their door is another one: half a handshake of HTTP/2 is enough to hold a connection for a minute."""
    shared.serves()
    with strangers(shared.address, 3 * LIMITS.connections, _PREFACE):
        stream = shared.train(2, fault="kill:0:1")
        stream.wait("started")
        # The port is full; this connection was there before. Others, in case that the first have been dropped meanwhile.
        with strangers(shared.address, 3 * LIMITS.connections, _PREFACE), pytest.raises(FdtError):
            rpc.connect(shared.address, Credentials(TOKEN), dataclasses.replace(TIMING, connect_s=0.5))
        stream.cancel()
        stream.wait_end()
        again = shared.train(2)
        again.wait("started")
        again.close()
    shared.serves()


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_silent_calls_are_ended_and_block_nobody(shared: Pool) -> None:
    never = threading.Event()

    def silent() -> Iterator[bytes]:
        never.wait(2 * LIMIT_S)
        yield from ()

    methods = ["Jobs/Train", "Blobs/Put", "Pool/Describe", "Pool/ListJobs", "Blobs/FindMissing"]
    with rpc.open_channel(shared.address, Credentials(TOKEN), TIMING) as channel:
        calls = [channel.stream_stream(f"/fdt.v1.{methods[n % 5]}")(silent(), timeout=LIMIT_S) for n in range(200)]
        shared.serves()
        codes = {call.code() for call in calls}
        never.set()
    # Those that had their turn were ended, or refused with the bound; none came to its own deadline.
    assert codes <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    shared.serves()


def test_too_many_jobs_of_one_connection(pool: Pool) -> None:
    streams = [pool.train(2) for _ in range(LIMITS.jobs_each)]
    for stream in streams:
        until(lambda stream=stream: bool(stream.seen), lambda: streams)
    refused = pool.train(2)
    assert refused.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{LIMITS.jobs_each} jobs of one client" in refused._call.details()
    # Another client's has a place in the queue.
    with pool.connect() as channel:
        other = TrainStream(channel, 2, {})
        assert other.wait("queued")
        other.cancel()
    for stream in streams:
        stream.cancel()
        stream.wait_end()
    pool.serves()


def test_too_many_jobs_in_all(pool: Pool) -> None:
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(pool.connect()) for _ in range(3)]
        streams = [TrainStream(channels[n // 6], 2, {}) for n in range(LIMITS.jobs)]
        for stream in streams:
            until(lambda stream=stream: bool(stream.seen), lambda: streams)
        refused = TrainStream(channels[2], 2, {})
        assert refused.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{LIMITS.jobs} jobs at once" in refused._call.details()
        assert pool.jobs(), "short calls have threads of their own"
        for stream in streams:
            stream.cancel()
            stream.wait_end()
    pool.serves()


# ---- jobs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opening", "bound"),
    [
        (job_pb2.OpenJob(mode="sync", num_workers=1, script="s" * 600), "500 bytes"),
        (job_pb2.OpenJob(mode="m" * 60, num_workers=1), "50 bytes"),
        (job_pb2.OpenJob(mode="sync", num_workers=1, options={"o" * 1500: "v" * 1500}), "2,000 bytes"),
        (job_pb2.OpenJob(mode="sync", num_workers=1, script="s" * 3_900_000), "2,000 bytes"),
    ],
)
def test_long_names_are_refused(shared: Pool, opening: job_pb2.OpenJob, bound: str) -> None:
    before = set(shared.jobs())
    stream = shared.opened(opening)
    assert stream.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bound in stream._call.details()
    assert set(shared.jobs()) == before, "nothing of it is kept"


def test_the_list_of_jobs_stays_small(pool: Pool) -> None:
    for _ in range(LIMITS.remembered_jobs + 5):
        pool.opened(job_pb2.OpenJob(mode="none", num_workers=1, script="s" * 499)).wait_end()
    until(lambda: len(pool.jobs()) == LIMITS.remembered_jobs, pool.jobs)
    assert not pool.supervisor._streams
    assert len(pool.supervisor._streams._steps) <= LIMITS.remembered_jobs + 1


def assignment(payload: bytes) -> bytes:
    state = job_pb2.State(payload=blobs_pb2.Payload(inline=payload))
    return job_pb2.Instruction(assign=job_pb2.AssignState(state=state)).SerializeToString()


def test_instructions_of_a_queued_job_are_not_read_beyond_the_bound(pool: Pool) -> None:
    first = pool.train(2)
    first.wait("started")
    second = pool.train(2)
    second.wait("queued")
    payload, num_messages = bytes(400_000), 250
    for _ in range(num_messages):
        second.send_raw(assignment(payload))
    second.send_raw(assignment(b"the last"))
    relay = list(pool.supervisor._streams._streams.values())[-1].relay

    def kept() -> int:
        return sum(map(len, list(relay._early)))

    until(lambda: kept() + len(payload) > LIMITS.early_bytes, kept)
    for _ in range(50):
        # Meanwhile, and while others are served, no more comes in: most of it waits in the client.
        assert len(pool.jobs()) and kept() <= LIMITS.early_bytes
    assert second._out.qsize() > num_messages / 2
    first.close()
    assert second.drain().state.payload.inline[8:] == b"the last", "all of it came to the workers, in order"
    second.close()
    pool.serves()


def test_a_worker_that_does_not_take_its_instructions_stops_its_client_only(pool: Pool) -> None:
    stream = pool.train(1, fault="stop:0:1")
    stream.wait("started")
    stream.bind(upload(pool, np.arange(10.0)))
    stream.run([[0]])
    bound = 2 * pool.supervisor.limits.untaken_bytes
    for _ in range(30):
        stream.send_raw(assignment(bytes(3_900_000)))
    (outbox,) = next(iter(pool.supervisor._streams._streams.values())).relay._workers
    until(lambda: outbox._num_bytes > bound / 4 or bool(stream.kinds("failed")), lambda: outbox._num_bytes)
    assert outbox._num_bytes <= bound
    assert "stopped answering" in stream.wait("failed").failed.message
    stream.wait_end()
    pool.serves()


def upload(pool: Pool, content: np.ndarray) -> job_pb2.Array:
    ref = reference(content)
    BlobClient(pool.channel, TIMING).upload([(ref, content)])
    return job_pb2.Array(tensor={"name": "x", "dtype": str(content.dtype)}, blob=ref)


@pytest.fixture
def patient_pool() -> Iterator[Pool]:
    pool = Pool(dataclasses.replace(LIMITS, pending=2000))
    yield pool
    pool.close()


def test_a_client_that_does_not_read_its_events_loses_its_job(patient_pool: Pool) -> None:
    pool, over = patient_pool, threading.Event()

    def instructions() -> Iterator[bytes]:
        yield job_pb2.Instruction(open=job_pb2.OpenJob(mode="sync", num_workers=1)).SerializeToString()
        yield assignment(bytes(60_000))
        for serial in range(2000):
            yield job_pb2.Instruction(drain=job_pb2.Drain(serial=serial)).SerializeToString()
        over.wait(2 * LIMIT_S)

    with pool.connect() as channel:
        # Nobody iterates over what comes back: gRPC stops the sender once its own window is full.
        call = channel.stream_stream("/fdt.v1.Jobs/Train")(instructions(), timeout=LIMIT_S)
        until(lambda: "failed" in {job.state for job in pool.jobs().values()}, pool.jobs)
        call.cancel()
        over.set()
    (reason,) = [job.reason for job in pool.jobs().values()]
    assert "does not read" in reason and "1,048,576 bytes" in reason
    assert not pool.supervisor._streams.unread._kept_bytes
    pool.serves()


@pytest.mark.parametrize(
    ("instructions", "bound"),
    [
        ([{"load": {"program": n}} for n in range(20)], "10 programs"),
        ([{"drain": {"serial": n}} for n in range(20)], "10 drains"),
        ([{"assign": {"state": {"payload": {"blob": {"digest": bytes(16)}}}}}] * 20, "10 states"),
        ([{"bind": {"arrays": [{"blob": {"digest": bytes((n,)) * 16}} for n in range(30)]}}], "20 blobs"),
    ],
)
def test_what_is_on_its_way_is_bounded(shared: Pool, instructions: list[dict], bound: str) -> None:
    first = shared.train(2)
    first.wait("started")
    # It waits, so that nothing is answered.
    stream = shared.train(2)
    stream.wait("queued")
    for instruction in instructions:
        if "load" in instruction:
            # Looked at once its number is noted.
            instruction["load"]["blob"] = upload_program(shared)
        stream.send_raw(job_pb2.Instruction(**instruction).SerializeToString())
    failed = stream.wait("failed").failed
    assert failed.error == "CapacityError" and bound in failed.message
    first.close()
    shared.serves()


def upload_program(pool: Pool) -> blobs_pb2.BlobRef:
    # A program without operations.
    return upload(pool, np.empty(0, np.uint8)).blob


# ---- the store ------------------------------------------------------------------------------------------------------


def put(pool: Pool, ref: blobs_pb2.BlobRef, chunks: Iterator[bytes]) -> grpc.Call:
    def messages() -> Iterator[bytes]:
        yield blobs_pb2.PutChunk(blob=ref).SerializeToString()
        for chunk in chunks:
            yield blobs_pb2.PutChunk(data=chunk).SerializeToString()

    return pool.channel.stream_stream("/fdt.v1.Blobs/Put")(messages(), timeout=LIMIT_S)


def test_a_blob_that_cannot_fit_is_refused_and_evicts_nothing(shared: Pool) -> None:
    kept = upload(shared, np.arange(100.0)).blob
    os.utime(shared.supervisor.store.path(kept), (0, 0))
    huge = blobs_pb2.BlobRef(digest=bytes(32), size_bytes=10**13)
    refused = put(shared, huge, iter(()))
    assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "bytes" in refused.details()
    assert not BlobClient(shared.channel, TIMING).find_missing([kept])


def test_a_trickling_upload_is_ended_and_holds_next_to_nothing(shared: Pool) -> None:
    store, done = shared.supervisor.store, threading.Event()
    declared = blobs_pb2.BlobRef(digest=bytes(32), size_bytes=int(0.5 * store._free_bytes()))

    def trickle() -> Iterator[bytes]:
        while not done.wait(0.1):
            yield b"x"

    call = put(shared, declared, trickle())
    until(lambda: bool(store._growing), lambda: store._growing)
    held = sum(size for _, size in store._growing.values())
    assert held <= LIMITS.upload_step_bytes
    upload(shared, np.random.default_rng(0).normal(size=1 << 20))
    assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "at least 4,096 bytes in 1 s" in call.details()
    done.set()
    until(lambda: not store._growing, lambda: store._growing)
    assert not list(store.directory.glob("part-*"))


def test_questions_about_blobs_are_bounded(shared: Pool) -> None:
    with pytest.raises(CapacityError, match="may name 30 blobs"):
        BlobClient(shared.channel, TIMING).find_missing([reference(bytes((n,))) for n in range(31)])


# ---- everything back, and nothing dead in silence ------------------------------------------------------------------


def test_fifty_jobs_leave_nothing(pool: Pool, shared: Pool) -> None:
    def state() -> tuple[set[str], int, int]:
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("fdt-")}
        tables = (pool.supervisor._streams, pool.supervisor.seen._curves)
        return names - {"fdt-pool"}, psutil.Process().num_fds(), sum(map(len, tables)) <= LIMITS.remembered_jobs

    def calls() -> list[str]:
        ours = ("fdt-call", "fdt-job", "fdt-sync")
        return [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]

    def ended() -> bool:
        # Two warm workers of each pool are attached, each with a call and its reader.
        return all(each.supervisor.load()[2] == 2 for each in (pool, shared)) and len(calls()) == 8

    until(ended, calls)
    before = state()[1]
    for _ in range(50):
        stream = pool.train(1)
        stream.wait("started")
        stream.close()
        stream.wait_end()
    until(ended, calls)
    until(lambda: state()[1] <= before and bool(state()[2]), state)


def test_a_log_that_cannot_be_removed_harms_nobody(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = []

    def refuse(_: object) -> None:
        broken.append(1)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pool.supervisor._logs, "ended", refuse)
    for _ in range(2):
        pool.serves()
    assert broken


@pytest.mark.parametrize(
    ("start", "status"),
    [
        ("from fdt.cli.main import main; sys.exit(main(['serve', '--listen', '127.0.0.1:0']))", 125),
        ("server.main()", 1),
    ],
)
def test_an_error_of_the_pools_own_ends_the_process(tmp_path: Path, start: str, status: int) -> None:
    """Whoever supervises it must notice, a service manager or a run: it is not alive and "stopping"."""
    broken = "from fdt.pool.state.pool_state import PoolState; PoolState.handle = lambda *_: 1 / 0"
    text = f"import sys; from fdt.pool import server; {broken}; {start}"
    config = dataclasses.asdict(ServeConfig(listen=f"unix:{tmp_path}/socket"))
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        # It stays open: a run would wait for its pool.
        process.stdin.write(json.dumps({**config, "directory": str(tmp_path)}).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(3 * LIMIT_S) == status
        said = process.stderr.read().decode()
    assert "ZeroDivisionError" in said and "_take_events" in said


def test_an_error_while_an_instruction_is_passed_on_fails_its_job(
    shared: Pool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = shared.train(1)
    stream.wait("started")
    with monkeypatch.context() as patch:
        patch.setattr("fdt.pool.relay.wrapped", lambda raw: 1 / 0)
        stream.run([[0]])
        failed = stream.wait("failed").failed
    assert failed.error == "PoolError" and "ZeroDivisionError" in failed.message
    assert "ZeroDivisionError" in capfd.readouterr().err
    shared.serves()


def test_a_client_that_cannot_take_what_comes_says_so_and_does_not_wait(
    shared: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = job_pb2.OpenJob(mode="sync", num_workers=1, versions=versions())
    with monkeypatch.context() as patch:
        patch.setattr("fdt.client.job_stream.JobStream._take", lambda *_, **__: 1 / 0)
        stream = JobStream(shared.channel, shared.address, opening, TIMING, BlobClient(shared.channel, TIMING))
        stream.drain(0, job_pb2.Drain.WHAT_METRICS)
        with pytest.raises(JobError, match="could not be taken: ZeroDivisionError"):
            stream.answer(1)
    stream.close()
    shared.serves()


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [(0, "finished", ""), (3, "finished", "status 3"), (130, "cancelled", "KeyboardInterrupt")],
)
def test_a_jobs_end_tells_how_its_script_ended(shared: Pool, status: int, state: str, reason: str) -> None:
    opening = job_pb2.OpenJob(mode="sync", num_workers=1, versions=versions())
    stream = JobStream(shared.channel, shared.address, opening, TIMING, BlobClient(shared.channel, TIMING))
    stream.drain(0, job_pb2.Drain.WHAT_METRICS)
    stream.answer(1)
    stream.close(status)
    # The pool takes what has happened in turn, and may be at the job's beginning yet.
    until(lambda: list(shared.jobs().values())[-1].state not in ("starting", "running"), shared.jobs)
    last = list(shared.jobs().values())[-1]
    assert last.state == state and reason in last.reason and bool(last.reason) == bool(reason)


def test_a_stopped_control_process_is_noticed(tmp_path: Path) -> None:
    """Within call_s / 2 + connect_s; gRPC's own bounds would make it a minute."""
    timing = Timing(call_s=1.0, connect_s=1.0, reconnect_s=0.0)
    text = (
        "import sys; from fdt.pool.server import Server; from fdt.base.config import *;"
        "from tests.helpers.toy_engine import ToyLauncher;"
        f"timing = Timing(call_s=1.0, connect_s=1.0); config = ServeConfig(listen='unix:{tmp_path}/pool', timing=timing);"
        "server = Server(config, {'sync': ToyLauncher()}); server.start(); sys.stdin.read(); server.stop()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, cwd=ROOT) as process:
        children: list[psutil.Process] = []
        try:
            until(lambda: (tmp_path / "pool").exists(), process.poll)
            channel = rpc.connect(f"unix:{tmp_path}/pool", Credentials(), dataclasses.replace(timing, connect_s=10.0))
            channel.close()
            channel = rpc.open_channel(f"unix:{tmp_path}/pool", Credentials(), timing)
            opening = job_pb2.OpenJob(mode="sync", num_workers=1, versions=versions())
            stream = JobStream(channel, "here", opening, timing, BlobClient(channel, timing))
            stream.drain(0, job_pb2.Drain.WHAT_METRICS)
            stream.answer(1)
            children = psutil.Process(process.pid).children(recursive=True)
            psutil.Process(process.pid).suspend()
            stream._reader.join(LIMIT_S)
            with pytest.raises(PoolUnreachableError, match="ping timeout"):
                stream.check()
            stream.close()
            channel.close()
        finally:
            process.kill()
    wait_gone(children)
