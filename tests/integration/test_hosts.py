"""A pool of two hosts with a toy engine: the second is a process of its own on loopback that joins, leaves and vanishes."""

import contextlib
import json
import os
import queue
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from fdt.base.config import Credentials, JoinConfig, Network
from fdt.errors import UsageError
from fdt.pool.host import Membership
from fdt.pool.state import events
from fdt.transport import rpc
from fdt.transport.blobs import one_time
from fdt.v1 import blobs_pb2, job_pb2, pool_pb2
from tests.helpers.certificates import certificate
from tests.helpers.ends import wait_gone
from tests.helpers.pool import write_token
from tests.helpers.processes import PYTHON, Background, background, run
from tests.helpers.thorough import some_of
from tests.helpers.toy_engine import ROOT, ToyLauncher
from tests.helpers.train_stream import LIMIT_S, TrainStream
from tests.integration.test_pool import TIMING, TOKEN, Pool, logs, train_ten_steps

LOOPBACK = Network("lo", "127.0.0.1", "127.0.0.0/8")


@pytest.fixture(scope="module", autouse=True)
def _import_toy_engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One worker of its own; each test must leave it like that."""
    pool = Pool(1, network=LOOPBACK)
    yield pool
    pool.close()


@pytest.fixture
def said(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> "queue.SimpleQueue[str]":
    """What the pool tells whoever runs it."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    supervisor = pool.server._supervisor
    assert supervisor is not None
    monkeypatch.setitem(supervisor._do, events.Say, lambda do: lines.put(do.line))
    return lines


def command(address: str, token_file: Path, slots: int = 1, *more: str) -> list[str]:
    options = ["--join", address, "--slots", str(slots), "--trusted-network", "lo", "--token-file", str(token_file)]
    return [PYTHON, "-m", "tests.helpers.toy_host", *options, *more]


@contextmanager
def host(pool: Pool, directory: Path, slots: int = 1, *more: str) -> Iterator[Background]:
    """A host that has joined."""
    token_file = write_token(directory / "token", TOKEN)
    with background(command(pool.address, token_file, slots, *more), cwd=directory) as process:
        process.wait_for_line("joined the pool", LIMIT_S)
        yield process


def num_workers(pool: Pool) -> int:
    return pool.stub.Describe(pool_pb2.DescribeRequest(), timeout=LIMIT_S).num_workers


def running(pool: Pool, num_workers: int = 2, **options: str) -> TrainStream:
    """A job that has run its first step."""
    stream = pool.train(num_workers, **options)
    pool.prepare(stream, "MatMul")
    stream.run([[0]])
    stream.wait("progress")
    return stream


def workers_on(host: Background) -> list[psutil.Process]:
    """The fork server of a host and its workers."""
    return psutil.Process(host.pid).children(recursive=True)


def failure(stream: TrainStream) -> job_pb2.Failed:
    failed = stream.wait("failed").failed
    stream.wait_end()
    return failed


def test_train_over_two_hosts(pool: Pool, tmp_path: Path) -> None:
    with host(pool, tmp_path):
        assert num_workers(pool) == 2
        train_ten_steps(pool, 2)
        train_ten_steps(pool, 2)
    assert num_workers(pool) == 1


def test_all_ranks_on_the_host_that_joined(pool: Pool, tmp_path: Path) -> None:
    """The first has what the client is given; a large state goes there and back."""
    with host(pool, tmp_path, 2):
        first = running(pool, 1)
        stream = pool.train(2)
        pool.prepare(stream, "MatMul")
        state = secrets.token_bytes(3 << 20)
        sent = one_time(len(state))
        pool.blobs.send(sent, [state])
        stream.assign_blob(sent)
        stream.run([[3, 4]])
        drained = stream.drain(job_pb2.Drain.WHAT_ALL)
        content = bytes(pool.blobs.download(drained.state.payload.blob))
        assert content == np.float64(7.0).tobytes() + state
        assert pool.blobs.find_missing([sent]) == [sent], "the state has arrived, so the pool need not keep it"
        assert [usage.rank for usage in stream.close().workers] == [0, 1]
        first.close()


def test_log_of_a_rank_on_another_host(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = pool.server._supervisor
    assert supervisor is not None
    noted, exited_on = threading.Event(), supervisor.exited_on
    monkeypatch.setattr(supervisor, "exited_on", lambda *arguments: (exited_on(*arguments), noted.set()))
    with host(pool, tmp_path):
        stream = running(pool)
        name = stream.wait("started").started.job
        assert "on host" in logs(pool, name)
        stream.close()
        assert noted.wait(LIMIT_S)
        text = logs(pool, name)
        assert text.count("loaded program 0") == 2 and "rank 1 of job" in text


def test_leaves(pool: Pool, tmp_path: Path) -> None:
    with host(pool, tmp_path) as process:
        stream = running(pool)
        workers = workers_on(process)
        process.process.send_signal(signal.SIGTERM)
        failed = failure(stream)
        assert failed.error == "WorkerLostError" and failed.rank == 1
        assert "(127.0.0.1) left the pool" in failed.message and "[1]" in failed.message
        assert process.process.wait(LIMIT_S) == 0
        wait_gone(workers)
    assert num_workers(pool) == 1
    train_ten_steps(pool, 1)


def test_killed(pool: Pool, tmp_path: Path) -> None:
    with host(pool, tmp_path) as process:
        stream = running(pool)
        workers = workers_on(process)
        os.kill(process.pid, signal.SIGKILL)
        failed = failure(stream)
        assert "(127.0.0.1) was lost" in failed.message and failed.rank == 1
        wait_gone(workers)
    assert num_workers(pool) == 1
    train_ten_steps(pool, 1)


def test_stopped(pool: Pool, tmp_path: Path) -> None:
    """Nothing ends and no connection breaks: only the silence tells."""
    with host(pool, tmp_path) as process:
        stream = running(pool)
        workers = workers_on(process)
        os.kill(process.pid, signal.SIGSTOP)
        failed = failure(stream)
        assert "(127.0.0.1) has stopped answering" in failed.message and failed.rank == 1
        assert num_workers(pool) == 1
        train_ten_steps(pool, 1)
        os.kill(process.pid, signal.SIGCONT)
        assert process.process.wait(LIMIT_S) == 125
        wait_gone(workers)
    assert "the pool goes on without it" in process.so_far().stderr


def test_stopped_with_all_its_workers(pool: Pool, tmp_path: Path) -> None:
    with host(pool, tmp_path) as process:
        stream = running(pool)
        family = [psutil.Process(process.pid), *workers_on(process)]
        for each in family:
            each.suspend()
        message = failure(stream).message
        assert message.startswith("Host") and "(127.0.0.1) has stopped answering" in message
        for each in family:
            # The host's end may be faster than this loop.
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        wait_gone(family)
    train_ten_steps(pool, 1)


def test_vanishes_idle_and_comes_back(pool: Pool, tmp_path: Path, said: "queue.SimpleQueue[str]") -> None:
    for _ in range(2):
        with host(pool, tmp_path) as process:
            assert "joined with 1 worker(s); the pool has 2" in said.get(timeout=LIMIT_S)
            train_ten_steps(pool, 2)
            os.kill(process.pid, signal.SIGKILL)
            assert "was lost" in said.get(timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("fault", "words"),
    some_of(
        [
            ("kill:1:3", "ended with signal 9 (SIGKILL)"),
            ("raise:1:2", "toy failure"),
            ("stop:1:3", "stopped answering"),
        ],
        [("kill:1:3", "ended with signal 9 (SIGKILL)")],
    ),
)
def test_a_broken_rank_is_named_with_its_host(pool: Pool, tmp_path: Path, fault: str, words: str) -> None:
    with host(pool, tmp_path):
        stream = pool.train(2, fault=fault)
        pool.prepare(stream, "MatMul")
        stream.run([[i] for i in range(5)])
        failed = failure(stream)
        assert failed.rank == 1 and words in failed.message and "on host" in failed.message
        train_ten_steps(pool, 2)


def test_the_pool_ends(tmp_path: Path) -> None:
    pool = Pool(1, network=LOOPBACK)
    with host(pool, tmp_path) as process:
        train_ten_steps(pool, 2)
        workers = workers_on(process)
        pool.close()
        assert process.process.wait(LIMIT_S) == 0
        wait_gone(workers)
    assert "has ended" in process.so_far().stderr


def test_wrong_token(pool: Pool, tmp_path: Path) -> None:
    token_file = write_token(tmp_path / "token", "another token")
    finished = run(command(pool.address, token_file), limit_s=LIMIT_S, cwd=tmp_path).expect(125)
    assert "--token-file" in finished.stderr and "another token" not in finished.output
    assert num_workers(pool) == 1


def test_a_token_of_the_hosts_alone(tmp_path: Path) -> None:
    """It opens what a host needs and nothing of a client's; the clients' token lets no host in."""
    pool = Pool(0, network=LOOPBACK, join_token="hosts only")
    clients, hosts = write_token(tmp_path / "clients", TOKEN), write_token(tmp_path / "hosts", "hosts only")
    try:
        refused = run(command(pool.address, clients), limit_s=LIMIT_S, cwd=tmp_path).expect(125)
        assert "--join-token-file" in refused.stderr and TOKEN not in refused.output
        joining = [*command(pool.address, clients), "--join-token-file", str(hosts), "--name", "node-7"]
        with background(joining, cwd=tmp_path) as process:
            process.wait_for_line("joined the pool", LIMIT_S)
            described = pool.stub.Describe(pool_pb2.DescribeRequest(), timeout=LIMIT_S)
            assert list(described.hosts) == ["node-7 (127.0.0.1), 1 worker(s)"]
            train_ten_steps(pool, 1)
        with rpc.connect(pool.address, Credentials("hosts only"), TIMING) as channel:
            for service in (pool_pb2, job_pb2, blobs_pb2):
                for each in service.DESCRIPTOR.services_by_name.values():
                    for method in each.methods:
                        call = channel.stream_stream(f"/{each.full_name}/{method.name}")(iter([b""]), timeout=LIMIT_S)
                        with pytest.raises(grpc.RpcError) as caught:
                            list(call)
                        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.full_name
    finally:
        pool.close()


def test_other_version(pool: Pool, tmp_path: Path) -> None:
    token_file = write_token(tmp_path / "token", TOKEN)
    other = {"TOY_VERSIONS": json.dumps({"tensorflow": "1.15.0"})}
    finished = run(command(pool.address, token_file), limit_s=LIMIT_S, cwd=tmp_path, **other).expect(125)
    (line,) = finished.stderr.splitlines()
    assert "tensorflow 1.15.0 on the host" in line and "in the pool" in line and "make install" in line
    train_ten_steps(pool, 1)


def test_pool_that_takes_no_hosts(tmp_path: Path) -> None:
    pool = Pool(1)
    try:
        token_file = write_token(tmp_path / "token", TOKEN)
        finished = run(command(pool.address, token_file), limit_s=LIMIT_S, cwd=tmp_path).expect(2)
        assert "--trusted-network" in finished.stderr, finished.describe()
    finally:
        pool.close()


def test_another_network(pool: Pool) -> None:
    """Each side sees to it that the other is on the network that its operator trusts."""
    timing = {"credentials": Credentials(TOKEN), "timing": TIMING}
    for network, words in (
        (Network("eth0", "192.0.2.7", "192.0.2.0/24"), "address=192.0.2.7"),
        (Network("lo", "127.0.0.2", "127.0.0.2/32"), "pool=127.0.0.1"),
    ):
        member = Membership(join_config(pool.address, network, **timing), {"sync": ToyLauncher()})
        try:
            with pytest.raises(UsageError, match=words):
                member.join()
        finally:
            member.close()
    train_ten_steps(pool, 1)


def join_config(address: str, network: Network, **more: object) -> JoinConfig:
    return JoinConfig(pool=address, num_workers=1, network=network, name="node7", **more)  # type: ignore[arg-type]


def test_tls(tmp_path: Path) -> None:
    """The host and its workers come in over TLS."""
    cert, key = certificate(tmp_path / "tls")
    pool = Pool(0, tls_ca=cert, tls_cert=cert, tls_key=key, network=LOOPBACK)
    try:
        with host(pool, tmp_path, 2, "--tls-ca", str(cert)):
            train_ten_steps(pool, 2)
    finally:
        pool.close()
