"""A real pool with real worker processes and a toy engine, over the real wire."""

import contextlib
import dataclasses
import gc
import logging
import mmap
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from fdt.base.config import Credentials, ServeConfig, Timing
from fdt.base.versions import versions
from fdt.client.job_stream import JobStream
from fdt.errors import (
    AccessError,
    CapacityError,
    PoolUnreachableError,
    ProgramRefusedError,
    ProtocolError,
    UsageError,
    VersionError,
)
from fdt.pool.server import Server
from fdt.transport import blob_client, rpc, statuses, wire
from fdt.transport.blob_client import BlobClient
from fdt.transport.blobs import one_time, reference
from fdt.v1 import graph_pb2, job_pb2, pool_pb2, pool_pb2_grpc, program_pb2, worker_pb2
from fdt.worker.log_file import HEAD_BYTES, TAIL_BYTES
from tests.helpers.ends import wait_gone
from tests.helpers.processes import children_of
from tests.helpers.replay import replay
from tests.helpers.toy_engine import FLOOD_BYTES, ROOT, BrokenLauncher, ToyLauncher
from tests.helpers.train_stream import LIMIT_S, TrainStream
from tests.helpers.waiting import wait_until

TIMING = Timing(
    connect_s=5.0, call_s=10.0, warm_s=30.0, join_s=20.0, heartbeat_s=0.1, heartbeat_limit_s=1.5, stop_s=3.0
)
TOKEN = "a token for these tests"


class Pool:
    """A server in this process, and a channel to it."""

    def __init__(
        self,
        num_workers: int = 2,
        launcher: type[ToyLauncher] = ToyLauncher,
        tls_ca: Path | None = None,
        **config: object,
    ) -> None:
        config = {"listen": "127.0.0.1:0", "token": TOKEN, "timing": TIMING, **config}
        self.server = Server(ServeConfig(num_workers=num_workers, **config), {"sync": launcher()})
        self.address = self.server.start()
        self.channel = rpc.connect(self.address, Credentials(TOKEN, tls_ca), TIMING)
        self.blobs = BlobClient(self.channel, TIMING)
        self.stub = pool_pb2_grpc.PoolStub(self.channel)

    def close(self) -> None:
        self.channel.close()
        self.server.stop()

    def train(self, num_workers: int = 2, **options: str) -> TrainStream:
        return TrainStream(self.channel, num_workers, options)

    def upload(self, content: object) -> job_pb2.Array:
        ref = reference(content)
        self.blobs.upload([(ref, content)])
        return job_pb2.Array(tensor=program_pb2.Tensor(name="x", dtype="float64"), blob=ref)

    def prepare(self, stream: TrainStream, *ops: str) -> None:
        """Loads a program of these operations, and binds ten rows."""
        stream.load(self.upload(program(*ops)).blob)
        stream.bind(self.upload(np.arange(10.0)))

    def jobs(self) -> dict[str, pool_pb2.JobSummary]:
        reply = self.stub.ListJobs(pool_pb2.ListJobsRequest(), timeout=LIMIT_S)
        return {job.job: job for job in reply.jobs}


def program(*ops: str) -> bytes:
    graph = graph_pb2.GraphDef(node=[graph_pb2.NodeDef(name=f"node/{op}", op=op) for op in ops])
    meta_graph = graph_pb2.MetaGraphDef(graph_def=graph).SerializeToString()
    return program_pb2.StepProgram(step=program_pb2.Function(meta_graph=meta_graph)).SerializeToString()


@pytest.fixture(scope="module", autouse=True)
def _import_toy_engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One pool for all tests: each must leave it usable. What happened to it can be replayed."""
    events = tmp_path_factory.mktemp("pool") / "events"
    pool = Pool(record_events=events)
    yield pool
    pool.close()
    assert all(job.state.ended for job in replay(events).jobs.values())


def test_a_job_that_is_closed_leaves_no_call_to_the_garbage_collector(pool: Pool) -> None:
    """At the end of the interpreter it would meet a call whose lock a thread holds that is no more, and wait for it."""
    gc.disable()
    try:
        before = {id(found) for found in gc.get_objects() if isinstance(found, grpc.Call)}
        opening = job_pb2.OpenJob(mode="sync", num_workers=1, versions=versions())
        stream = JobStream(pool.channel, pool.address, opening, TIMING, pool.blobs)
        stream.drain(0, job_pb2.Drain.WHAT_METRICS)
        stream.answer(1)
        stream.close()
        assert not [found for found in gc.get_objects() if isinstance(found, grpc.Call) and id(found) not in before]
    finally:
        gc.enable()


def train_ten_steps(pool: Pool, num_workers: int = 2) -> None:
    """Runs a job to its end and looks at all it says."""
    stream = pool.train(num_workers)
    pool.prepare(stream, "MatMul")
    for step in range(10):
        stream.run([[step, 0]])
    drained = stream.drain(job_pb2.Drain.WHAT_ALL)
    assert drained.steps == 10
    assert np.frombuffer(drained.state.payload.inline)[0] == 45.0
    assert [usage.rank for usage in drained.workers] == list(range(num_workers))
    closed = stream.close()
    assert [(usage.rank, usage.steps, usage.samples) for usage in closed.workers] == [
        (rank, 10, 20) for rank in range(num_workers)
    ]
    assert all(usage.peak_memory_bytes > 1e6 for usage in closed.workers)
    # The pool says the one, the workers say the other: in which order they come is left open.
    assert stream.wait("started") and stream.wait("loaded")
    steps = [event.progress.steps for event in stream.seen if event.HasField("progress")]
    # What the drain's answer tells is not told before as well.
    assert steps == sorted(set(steps)) and all(number <= 10 for number in steps)
    assert stream.status() == grpc.StatusCode.OK


def test_who_was_heard_of_is_looked_at_under_the_lock(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers attach meanwhile: a table that grows while it is gone through ended the pool."""
    supervisor = pool.server._supervisor
    assert supervisor is not None
    held: list[bool] = []
    looked, look = threading.Event(), supervisor._failure_detector.look

    def looked_at(*everybody: object) -> None:
        held.append(supervisor._lock.locked())
        look(*everybody)  # type: ignore[arg-type]
        looked.set()

    monkeypatch.setattr(supervisor._failure_detector, "look", looked_at)
    assert looked.wait(LIMIT_S) and all(held)


def test_train(pool: Pool) -> None:
    train_ten_steps(pool)


@pytest.mark.parametrize("walls", [True, False])
def test_a_worker_cannot_read_the_users_files(tmp_path: Path, walls: bool) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    pool = Pool(num_workers=1, walls=walls)
    try:
        stream = pool.train(1, read=str(secret))
        pool.prepare(stream, "MatMul")
        if walls:
            failed = stream.wait("failed").failed
            assert "PermissionError" in failed.message and str(secret) in failed.message
        else:
            stream.run([[1, 0]])
            assert stream.drain(job_pb2.Drain.WHAT_ALL).steps == 1
            stream.close()
    finally:
        pool.close()


def test_a_worker_has_a_folder_of_its_own_that_goes_with_it(tmp_path: Path) -> None:
    directory = tmp_path / "pool"
    directory.mkdir()
    server = Server(
        ServeConfig(listen=f"unix:{tmp_path}/pool.sock", num_workers=1, timing=TIMING),
        {"sync": ToyLauncher()},
        directory,
    )
    channel = rpc.connect(server.start(), Credentials(), TIMING)
    try:
        stream = TrainStream(channel, 1, {})
        stream.wait("started")
        (folder,) = (directory / "workers").iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        (process,) = [process for process in children() if process.cwd() == str(folder)]
        stream.close()
        wait_gone([process])
        # The next one has its own; the pool hears of an end just after it.
        end_s = time.monotonic() + LIMIT_S
        while folder.exists() and time.monotonic() < end_s:
            threading.Event().wait(0.01)
        assert not folder.exists()
    finally:
        channel.close()
        server.stop()


def test_a_log_is_bounded_and_shows_how_it_ended(pool: Pool) -> None:
    stream = pool.train(1, fault="flood:0:1")
    pool.prepare(stream, "MatMul")
    stream.run([[1, 0]])
    failed = stream.wait("failed").failed
    assert "Fatal Python error: Aborted" in failed.message
    name = list(pool.jobs())[-1]
    log = b"".join(chunk.text for chunk in pool.stub.GetLogs(pool_pb2.GetLogsRequest(job=name), timeout=LIMIT_S))
    assert b"fdt worker: rank 0" in log[:10_000], "how it began"
    assert b"in _break" in log[-10_000:], "how it ended"
    assert HEAD_BYTES + TAIL_BYTES <= len(log) <= HEAD_BYTES + TAIL_BYTES + (1 << 20) < 6 * FLOOD_BYTES
    train_ten_steps(pool)


def test_jobs_follow_each_other_and_are_listed(pool: Pool) -> None:
    before = len(pool.jobs())
    train_ten_steps(pool, num_workers=1)
    train_ten_steps(pool, num_workers=2)
    listed = list(pool.jobs().values())[before:]
    assert [(job.state, job.steps, job.num_workers) for job in listed] == [("finished", 10, 1), ("finished", 10, 2)]


def test_large_state_goes_through_the_store_and_is_dropped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = pool.train(1)
    pool.prepare(stream)
    state = secrets.token_bytes(1 << 20)
    sent = one_time(len(state))
    pool.blobs.send(sent, [state])
    stream.assign_blob(sent)
    drained = stream.drain()
    assert bytes(pool.blobs.download(drained.state.payload.blob)) == bytes(8) + state
    monkeypatch.setattr(blob_client, "_IN_MEMORY_BYTES", 1 << 10)
    mapped = pool.blobs.download(drained.state.payload.blob)
    assert isinstance(mapped, mmap.mmap), "what is large is not held in memory"
    assert bytes(mapped) == bytes(8) + state
    assert pool.blobs.find_missing([sent]) == [sent], "the state has arrived, so the pool need not keep it"
    stream.close()
    stream.wait_end()
    assert pool.blobs.find_missing([drained.state.payload.blob])


@pytest.mark.parametrize("how", ["state", "rows"])
def test_nobody_deletes_an_array_that_another_client_sent(pool: Pool, how: str) -> None:
    """Whoever has an array knows its name, and may have a job use it up as what serves once."""
    array = pool.upload(np.zeros(1 << 15, np.int64))
    stream = pool.train(1)
    pool.prepare(stream)
    if how == "state":
        stream.assign_blob(array.blob)
    else:
        stream.run_blob(array.blob)
    stream.drain()
    stream.close()
    stream.wait_end()
    assert pool.blobs.find_missing([array.blob]) == []


def test_second_job_queues_and_says_why(pool: Pool) -> None:
    first = pool.train()
    first.wait("started")
    second = pool.train(1)
    queued = second.wait("queued").queued
    assert queued.position == 1 and "2 of 2" in queued.reason
    third = pool.train(1)
    assert third.wait("queued").queued.position == 2
    first.close()
    second.wait("started")
    second.close()
    third.wait("started")
    third.close()


def test_queued_client_goes_away(pool: Pool) -> None:
    first = pool.train()
    first.wait("started")
    second, third = pool.train(), pool.train()
    second.wait("queued")
    third.wait("queued")
    second.cancel()
    assert third.wait_queued(position=1)
    first.close()
    third.wait("started")
    third.close()


def test_cancel_ends_the_processes(pool: Pool) -> None:
    stream = pool.train(fault="block:1:3")
    pool.prepare(stream)
    stream.run([[0], [1], [2], [3]])
    name = stream.wait("started").started.job
    processes = workers_of(pool, name)
    assert len(processes) == 2
    pool.stub.CancelJob(pool_pb2.CancelJobRequest(job=name), timeout=LIMIT_S)
    assert stream.wait("failed").failed.error == "JobCancelledError"
    wait_gone(processes)
    assert pool.jobs()[name].state == "cancelled"
    train_ten_steps(pool)


def test_client_gone_ends_the_processes(pool: Pool) -> None:
    stream = pool.train(fault="block:0:1")
    pool.prepare(stream)
    stream.run([[0]])
    processes = workers_of(pool, stream.wait("started").started.job)
    stream.cancel()
    wait_gone(processes)
    train_ten_steps(pool)


@pytest.mark.parametrize(
    ("fault", "rank", "words"),
    [
        ("kill:1:3", 1, "SIGKILL"),
        pytest.param("kill:0:3", 0, "SIGKILL", marks=pytest.mark.thorough),
        ("exit:1:2", 1, "exit status 7"),
        ("raise:0:2", 0, "RuntimeError: toy failure"),
        ("stop:1:3", 1, "stopped answering"),
        # Before the first step.
        ("kill:1:0", 1, "SIGKILL"),
        pytest.param("raise:1:0", 1, "toy failure", marks=pytest.mark.thorough),
    ],
)
def test_broken_rank_is_named_and_the_pool_goes_on(pool: Pool, fault: str, rank: int, words: str) -> None:
    stream = pool.train(fault=fault)
    pool.prepare(stream)
    stream.run([[i] for i in range(5)])
    failed = stream.wait("failed").failed
    assert failed.error == ("WorkerError" if "raise" in fault else "WorkerLostError") and failed.rank == rank
    assert words in failed.message and f"Rank {rank}" in failed.message
    stream.wait_end()
    train_ten_steps(pool)


def test_a_step_that_never_ends_fails_the_job() -> None:
    """The rank is alive and beats: only its steps tell."""
    pool = Pool(timing=dataclasses.replace(TIMING, stall_s=0.5))
    stream = pool.train(fault="block:1:3")
    pool.prepare(stream)
    stream.run([[i] for i in range(5)])
    failed = stream.wait("failed").failed
    assert failed.error == "WorkerLostError" and failed.rank == 1
    assert "Rank 1 has finished no step for" in failed.message and "after 3 steps" in failed.message
    (job,) = pool.jobs()
    log = b"".join(chunk.text for chunk in pool.stub.GetLogs(pool_pb2.GetLogsRequest(job=job), timeout=LIMIT_S))
    assert b"toy_engine.py" in log and b"in _break" in log, "the log shows where its threads are"
    stream.wait_end()
    train_ten_steps(pool)
    pool.close()


def test_killed_from_outside(pool: Pool) -> None:
    stream = pool.train()
    pool.prepare(stream)
    stream.run([[0]])
    victims = workers_of(pool, stream.wait("started").started.job)
    stream.wait("progress")
    os.kill(victims[0].pid, signal.SIGKILL)
    assert "SIGKILL" in stream.wait("failed").failed.message
    wait_gone(victims)


def test_warm_worker_that_dies_is_replaced(pool: Pool) -> None:
    train_ten_steps(pool)
    killed = children()
    for process in killed:
        # One that served the job before may end by itself meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_gone(killed)
    train_ten_steps(pool)


def test_more_workers_than_the_pool_has(pool: Pool) -> None:
    stream = pool.train(3)
    failed = stream.wait("failed").failed
    assert failed.error == "CapacityError" and "2 worker(s)" in failed.message


def test_unknown_mode_and_version(pool: Pool) -> None:
    stream = TrainStream(pool.channel, 1, {}, mode="carrier-pigeon")
    assert stream.wait("failed").failed.error == "UsageError"
    with pytest.raises(VersionError, match=r"99\.0"), statuses.translated():
        pool.stub.Describe(pool_pb2.DescribeRequest(versions=program_pb2.Versions(fdt="99.0.1")), timeout=LIMIT_S)


def test_refused_program_reaches_no_worker(pool: Pool) -> None:
    stream = pool.train()
    pool.prepare(stream, "MatMul", "EagerPyFunc")
    failed = stream.wait("failed").failed
    assert failed.error == ProgramRefusedError.__name__
    assert "EagerPyFunc" in failed.message and "node/EagerPyFunc" in failed.message
    assert not stream.kinds("loaded")
    assert "loaded program" not in logs(pool, list(pool.jobs())[-1])


def test_logs_of_a_job(pool: Pool) -> None:
    train_ten_steps(pool)
    job = list(pool.jobs())[-1]
    # The job has ended with what rank 0 said of it; the other may still be reading.
    wait_until(lambda: logs(pool, job).count("loaded program 0") == 2, lambda: logs(pool, job), LIMIT_S)
    assert "--- rank 0" in logs(pool, job) and "--- rank 1" in logs(pool, job)
    with pytest.raises(ProtocolError, match="job-99999"):
        logs(pool, "job-99999")


def test_missing_blob(pool: Pool) -> None:
    stream = pool.train(1)
    stream.load(reference(b"never uploaded"))
    assert "upload it first" in stream.wait("failed").failed.message


def test_malformed_messages(pool: Pool) -> None:
    describe = pool.channel.unary_unary("/fdt.v1.Pool/Describe")
    with pytest.raises(grpc.RpcError) as caught:
        describe(b"\xff\xff\xff", timeout=LIMIT_S)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(statuses.from_rpc_error(caught.value), ProtocolError)
    first = TrainStream(pool.channel, 1, {}, opening=b"\xff\xff")
    assert first.status() == grpc.StatusCode.INVALID_ARGUMENT
    later = pool.train(1)
    later.send_raw(b"\xff\xff")
    assert later.wait("failed").failed.error == "ProtocolError"
    assert later.status() == grpc.StatusCode.INVALID_ARGUMENT
    no_open = TrainStream(pool.channel, 1, {}, opening=job_pb2.Instruction(close={}).SerializeToString())
    assert no_open.status() == grpc.StatusCode.INVALID_ARGUMENT
    train_ten_steps(pool)


def test_half_closed_stream_cancels(pool: Pool) -> None:
    stream = pool.train(1)
    stream.wait("started")
    stream.half_close()
    assert stream.wait("failed").failed.error == "JobCancelledError"


def test_wrong_token_and_nobody_there(pool: Pool) -> None:
    with pytest.raises(AccessError, match="--token-file"):
        rpc.connect(pool.address, Credentials("not the token"), TIMING)
    with pytest.raises(AccessError):
        rpc.connect(pool.address, Credentials(), TIMING)
    with pytest.raises(PoolUnreachableError, match="fdt serve"):
        rpc.connect("127.0.0.1:1", Credentials(TOKEN), TIMING)


def test_ten_thousand_calls_without_token_reach_no_handler(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    decode = wire.decode

    def record(message: type, raw: bytes) -> object:
        # Workers, which have a secret, may be attaching meanwhile.
        if message is not worker_pb2.WorkerEvent:
            decoded.append(message)
        return decode(message, raw)

    monkeypatch.setattr(wire, "decode", record)
    monkeypatch.setattr(pool.server._supervisor, "submit", decoded.append)
    with grpc.insecure_channel(pool.address) as channel:
        methods = ["Pool/Describe", "Pool/ListJobs", "Pool/CancelJob", "Blobs/FindMissing", "Nothing/Here"]
        calls = [channel.unary_unary(f"/fdt.v1.{method}") for method in methods]
        calls.append(channel.unary_unary("/grpc.health.v1.Health/Check"))
        statuses = []
        for _ in range(0, 10_000, 50):
            batch = [calls[i % len(calls)].future(secrets.token_bytes(i % 64), timeout=LIMIT_S) for i in range(50)]
            statuses += [call.exception(timeout=LIMIT_S).code() for call in batch]
        for name in ("Jobs/Train", "Workers/Attach", "Blobs/Put"):
            stream = channel.stream_stream(f"/fdt.v1.{name}")(iter([b"x"]), timeout=LIMIT_S)
            assert stream.code() == grpc.StatusCode.UNAUTHENTICATED
    assert len(statuses) == 10_000 and set(statuses) == {grpc.StatusCode.UNAUTHENTICATED}
    assert not decoded


def test_wrong_tokens_are_counted_and_told_at_1_10_100(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives none does not guess."""
    # A server that was started in this process before has the log written by itself alone.
    monkeypatch.setattr(logging.getLogger("fdt"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("fdt"), "handlers", [caplog.handler])
    caplog.set_level("NOTICE", logger="fdt")
    pool = Pool(num_workers=1)
    try:
        with grpc.insecure_channel(pool.address) as channel:
            call = channel.unary_unary("/fdt.v1.Pool/View")
            for number in range(12):
                for metadata in ((), ((rpc.TOKEN_KEY, f"guess {number}"),)):
                    with pytest.raises(grpc.RpcError) as caught:
                        call(b"", timeout=LIMIT_S, metadata=metadata)
                    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        told = [record.getMessage() for record in caplog.records if "wrong token" in record.getMessage()]
        assert [line.split()[0] for line in told] == ["1", "10"] and all("127.0.0.1" in line for line in told)
        assert "guess" not in "".join(told).replace("somebody guesses", "")
    finally:
        pool.close()


def test_store_limit() -> None:
    pool = Pool(num_workers=1, store_limit_bytes=3 << 20)
    try:
        stream = pool.train(1)
        pool.prepare(stream)
        with pytest.raises(CapacityError, match="full"):
            pool.upload(secrets.token_bytes(4 << 20))
        stream.run([[0]])
        assert stream.drain().steps == 1
        stream.close()
    finally:
        pool.close()


def test_workers_that_never_get_ready() -> None:
    pool = Pool(num_workers=1, launcher=BrokenLauncher)
    try:
        failed = pool.train(1).wait("failed").failed
        assert failed.error == "WorkerError" and "no such runtime" in failed.message
    finally:
        pool.close()


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    directory = tmp_path / "pool"
    directory.mkdir()
    server = Server(ServeConfig(listen=f"unix:{tmp_path}/pool.sock", timing=TIMING), {"sync": ToyLauncher()}, directory)
    channel = rpc.connect(server.start(), Credentials(), TIMING)
    stream = TrainStream(channel, 2, {})
    stream.wait("started")
    processes = [process for process in children() if process.cwd().startswith(f"{directory}/workers/")]
    assert len(processes) == 2
    server.stop()
    assert stream.wait("failed").failed.error == "JobCancelledError"
    stream.wait_end()
    channel.close()
    assert not any(process.is_running() for process in processes)
    assert not directory.exists()
    left = {thread.name for thread in threading.enumerate()} - before
    assert not [name for name in left if name.startswith("fdt-") and not name.startswith("fdt-call")]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.com:80"])
def test_off_loopback_needs_token_and_tls(listen: str) -> None:
    with pytest.raises(UsageError, match="--tls-cert"):
        Server(ServeConfig(listen=listen, token=TOKEN), {"sync": ToyLauncher()})


def test_port_that_is_taken(pool: Pool) -> None:
    server = Server(ServeConfig(listen=pool.address), {"sync": ToyLauncher()})
    with pytest.raises(UsageError, match="Cannot listen"):
        server.start()
    server.stop()


def children() -> list[psutil.Process]:
    """Returns the worker processes: they are forked by processes that this one has started."""
    return [process for process in children_of(os.getpid(), "fdt.worker.forkserver") if process.ppid() != os.getpid()]


def workers_of(pool: Pool, job: str) -> list[psutil.Process]:
    supervisor = pool.server._supervisor
    assert supervisor is not None
    pids = {supervisor._processes.pid(log.stem) for log in supervisor.logs(job)}
    return [process for process in children() if process.pid in pids]


def logs(pool: Pool, job: str) -> str:
    with statuses.translated():
        chunks = pool.stub.GetLogs(pool_pb2.GetLogsRequest(job=job), timeout=LIMIT_S)
        return b"".join(chunk.text for chunk in chunks).decode()
