"""Who is believed to be a worker, and what a program that reads its worker's memory learns: nothing that opens more."""

import dataclasses
import secrets
import threading
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import psutil
import pytest

from fdt.base.config import Network
from fdt.pool.worker_keys import WorkerKeys
from fdt.transport.blobs import one_time, reference
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, pool_pb2, worker_pb2
from tests.helpers.intruder import Call, attach, holds, joined
from tests.helpers.toy_engine import ROOT, StuckLauncher
from tests.helpers.train_stream import LIMIT_S, TrainStream
from tests.integration.test_pool import TIMING, TOKEN, Pool

LOOPBACK = Network("lo", "127.0.0.1", "127.0.0.0/8")
# Nobody beats here.
PATIENT = dataclasses.replace(TIMING, heartbeat_limit_s=60.0)
NO_TOKEN, NO_SENSE = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT
_LOCAL = [("grpc.default_authority", "localhost")]
CLOUD_KEY = f"of the operator's cloud: {secrets.token_hex()}"
WORKERS = worker_pb2.DESCRIPTOR.services_by_name["Workers"].methods


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("AWS_SECRET_ACCESS_KEY", CLOUD_KEY)
        patch.setenv("TF_VAR_password", CLOUD_KEY)
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


class Issued:
    """What the pool has given out, by worker: secrets to attach with, and keys of those that serve; and who serves no more."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.secrets: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.over: list[str] = []
        self._changed = threading.Condition()
        self._record(patch, "issue", lambda worker, secret: self.secrets.setdefault(worker, secret))
        self._record(patch, "assign", lambda worker, _, key: self.keys.setdefault(worker, key))
        for method in ("forget", "end"):
            self._record(patch, method, lambda worker_or_job, _: self.over.append(worker_or_job))

    def wait(self, known: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(known, LIMIT_S)

    def _record(self, patch: pytest.MonkeyPatch, method: str, note: Callable[..., object]) -> None:
        does = getattr(WorkerKeys, method)

        def recording(keys: WorkerKeys, *arguments: str) -> object:
            result = does(keys, *arguments)
            with self._changed:
                note(*arguments, result)
                self._changed.notify_all()
            return result

        patch.setattr(WorkerKeys, method, recording)


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> Issued:
    return Issued(monkeypatch)


def running(pool: Pool, num_workers: int) -> TrainStream:
    """A job that has made a step."""
    stream = pool.train(num_workers)
    pool.prepare(stream, "MatMul")
    stream.run([[1]])
    stream.wait("progress")
    return stream


def outcomes(channel: grpc.Channel, token: str) -> set[grpc.StatusCode]:
    """Returns what all methods of `Workers` answer to a token."""
    return {
        Call(channel, f"Workers/{method.name}", worker_pb2.WorkerInstruction, token).outcome()[0] for method in WORKERS
    }


# ---- what a worker's memory tells -----------------------------------------------------------------------------------


def test_a_workers_memory_holds_nothing_that_opens_anything_but_its_own_job(issued: Issued) -> None:
    """Nor the operator's variables. Of other workers, some have ended and some run."""
    pool = Pool(2)
    try:
        running(pool, 2).close()
        streams = [running(pool, 1) for _ in range(2)]
        supervisor = pool.server._supervisor
        assert supervisor is not None
        assert len(issued.keys) == 4
        for worker, key in [*issued.keys.items()][2:]:
            pid = supervisor._processes.pid(worker)
            assert pid is not None and holds(pid, key), "a look that finds nothing proves nothing"
            others = [each for given in (issued.secrets, issued.keys) for name, each in given.items() if name != worker]
            assert len(others) >= 6 and not [each for each in others if holds(pid, each)]
            assert not supervisor.own_keys.opens("Attach", issued.secrets[worker].encode())
            assert not holds(pid, TOKEN) and not holds(pid, CLOUD_KEY)
            told = psutil.Process(pid)
            assert told.environ()["OMP_WAIT_POLICY"] == "passive" and "AWS_SECRET_ACCESS_KEY" not in told.environ()
            assert not [word for word in told.cmdline() if issued.secrets[worker] in word or key in word]
        for stream in streams:
            stream.close()
    finally:
        pool.close()


# ---- who attaches ---------------------------------------------------------------------------------------------------


def test_nothing_opens_the_workers_service_on_the_port_of_a_pool_that_takes_no_hosts(issued: Issued) -> None:
    pool = Pool(1, launcher=StuckLauncher)
    try:
        issued.wait(lambda: issued.secrets)
        with grpc.insecure_channel(pool.address) as channel:
            (secret,) = issued.secrets.values()
            for token in (secret, TOKEN, "", secrets.token_hex(32)):
                assert outcomes(channel, token) == {NO_TOKEN}
    finally:
        pool.close()


def test_a_name_is_not_believed_without_the_secret_that_was_made_for_it(issued: Issued) -> None:
    """Not on the clients' port, where hosts' workers come, and not on the socket of the pool's own."""
    pool = Pool(2, launcher=StuckLauncher, network=LOOPBACK, timing=PATIENT)
    try:
        issued.wait(lambda: len(issued.secrets) == 2)
        (one, secret), (other, _) = issued.secrets.items()
        with grpc.insecure_channel(pool.address) as port:
            for token in (TOKEN, "", secrets.token_hex(32), secret):
                assert attach(port, one, token).outcome() == (NO_TOKEN, [])
        with grpc.insecure_channel(f"unix:{pool.server._directory}/workers.sock", _LOCAL) as socket:
            for token in (TOKEN, "", secrets.token_hex(32)):
                assert attach(socket, one, token).outcome() == (NO_TOKEN, [])
            assert attach(socket, other, secret).outcome() == (NO_TOKEN, [])
            pool.train(1)
            right = attach(socket, one, secret)
            assert right.next().assignment.job == "job-1"
            # It has served, though the stream is open.
            assert attach(socket, one, secret).outcome() == (NO_TOKEN, [])
            right.break_off()
            assert attach(socket, one, secret).outcome() == (NO_TOKEN, [])
    finally:
        pool.close()


# ---- what a worker may call -----------------------------------------------------------------------------------------


@pytest.fixture
def by_hand() -> Iterator[Pool]:
    """Without workers of its own; hosts may join."""
    pool = Pool(0, network=LOOPBACK, timing=PATIENT)
    yield pool
    pool.close()


@dataclasses.dataclass
class Rank:
    """The only worker of a job, and an array that the job has bound."""

    job: str
    name: str
    secret: str
    key: str
    stream: Call
    array: blobs_pb2.BlobRef


@pytest.fixture
def ranks(by_hand: Pool) -> Iterator[tuple[grpc.Channel, list[Rank]]]:
    """Of two clients' jobs, on a host that joined; and the channel on which these came."""
    with grpc.insecure_channel(by_hand.address) as channel, joined(channel, TOKEN, 2) as starts:
        found = []
        for number, (name, secret) in enumerate(starts.items()):
            stream = attach(channel, name, secret)
            client = by_hand.train(1)
            client.bind(by_hand.upload(np.arange(3.0) + number))
            assignment = stream.next().assignment
            stream.send(worker_pb2.WorkerEvent(joined=worker_pb2.Joined()))
            bound = stream.next().instruction.bind.arrays[0].blob
            found.append(Rank(assignment.job, name, secret, assignment.key, stream, bound))
        yield channel, found


def value(channel: grpc.Channel, token: str, key: str) -> tuple[grpc.StatusCode, list[bytes]]:
    call = Call(channel, "Workers/GetValue", worker_pb2.GetValueReply, token)
    status, replies = call.send(worker_pb2.GetValueRequest(key=key)).outcome()
    return status, [reply.value for reply in replies if reply.HasField("value")]


def put_value(channel: grpc.Channel, token: str, key: str, value: bytes) -> grpc.StatusCode:
    call = Call(channel, "Workers/PutValue", worker_pb2.PutValueReply, token)
    return call.send(worker_pb2.PutValueRequest(key=key, value=value)).outcome()[0]


def fetched(channel: grpc.Channel, token: str, ref: blobs_pb2.BlobRef) -> tuple[grpc.StatusCode, bytes]:
    status, chunks = Call(channel, "Workers/GetBlob", blobs_pb2.GetChunk, token).send(ref).outcome()
    return status, b"".join(chunk.data for chunk in chunks)


def sent(channel: grpc.Channel, token: str, ref: blobs_pb2.BlobRef, data: bytes) -> grpc.StatusCode:
    call = Call(channel, "Workers/PutBlob", blobs_pb2.PutReply, token)
    return call.send(blobs_pb2.PutChunk(blob=ref, data=data)).outcome()[0]


def test_a_key_opens_the_values_and_arrays_of_one_job(by_hand: Pool, ranks: tuple[grpc.Channel, list[Rank]]) -> None:
    channel, (one, other) = ranks
    assert one.job != other.job and one.key != other.key
    assert put_value(channel, one.key, "place", b"of one") == grpc.StatusCode.OK
    assert value(channel, one.key, "place") == (grpc.StatusCode.OK, [b"of one"])
    assert value(channel, other.key, "place") == (grpc.StatusCode.OK, [])
    assert fetched(channel, one.key, one.array) == (grpc.StatusCode.OK, np.arange(3.0).tobytes())
    idle = by_hand.upload(np.arange(7.0)).blob
    for ref in (other.array, idle):
        assert fetched(channel, one.key, ref) == (NO_SENSE, b"")
    once = one_time(5)
    assert sent(channel, one.key, once, b"state") == grpc.StatusCode.OK
    assert bytes(by_hand.blobs.download(once)) == b"state"
    # Nothing takes the place of what is there, or of what a name promises.
    assert sent(channel, other.key, once, b"other") == NO_SENSE
    assert sent(channel, one.key, reference(b"state"), b"state") == NO_SENSE


def test_what_a_worker_has_opens_nothing_of_a_clients_or_a_hosts(ranks: tuple[grpc.Channel, list[Rank]]) -> None:
    channel, (one, other) = ranks
    services = [
        service
        for file in (blobs_pb2, job_pb2, pool_pb2, host_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    methods = [f"{service.name}/{method.name}" for service in services for method in service.methods]
    assert {"Jobs/Train", "Blobs/Get", "Blobs/FindMissing", "Pool/CancelJob", "Hosts/Attach"} <= set(methods)
    for token in (one.secret, one.key):
        assert {Call(channel, each, pool_pb2.ViewReply, token).outcome()[0] for each in methods} == {NO_TOKEN}
    # A secret has served; a key is for calls, not to attach with; and a client's token is for neither.
    assert outcomes(channel, one.secret) == {NO_TOKEN} == outcomes(channel, TOKEN)
    for name in (one.name, other.name):
        assert attach(channel, name, one.key).outcome() == (NO_TOKEN, [])


def test_a_key_ends_with_its_workers_stream_and_with_its_job(
    issued: Issued, by_hand: Pool, ranks: tuple[grpc.Channel, list[Rank]]
) -> None:
    channel, (one, other) = ranks
    for rank in (one, other):
        assert put_value(channel, rank.key, "place", b"") == grpc.StatusCode.OK
    one.stream.break_off()
    issued.wait(lambda: one.name in issued.over)
    assert outcomes(channel, one.key) == {NO_TOKEN}
    assert put_value(channel, other.key, "place", b"") == grpc.StatusCode.OK
    by_hand.stub.CancelJob(pool_pb2.CancelJobRequest(job=other.job), timeout=LIMIT_S)
    issued.wait(lambda: other.job in issued.over)
    assert outcomes(channel, other.key) == {NO_TOKEN}


def test_no_host_is_told_the_secrets_of_anothers_workers(by_hand: Pool) -> None:
    with (
        grpc.insecure_channel(by_hand.address) as channel,
        joined(channel, TOKEN, 1) as first,
        joined(channel, TOKEN, 1) as second,
    ):
        (mine,), (theirs, secret) = first, *second.items()
        assert attach(channel, mine, secret).outcome() == (NO_TOKEN, [])
        assert attach(channel, theirs, first[mine]).outcome() == (NO_TOKEN, [])
        # That was no use of them.
        by_hand.train(1), by_hand.train(1)
        jobs = {attach(channel, name, each).next().assignment.job for name, each in (first | second).items()}
        assert jobs == {"job-1", "job-2"}
