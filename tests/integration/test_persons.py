"""A pool of several persons: who may do what, what is whose, and what of it is written down."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from fdt.base.config import Credentials, Network
from fdt.base.limits import Limits
from fdt.base.versions import host_versions, versions
from fdt.errors import AccessError, ProtocolError
from fdt.pool import token_file
from fdt.pool.access import RULES
from fdt.transport import rpc
from fdt.transport.blob_client import BlobClient
from fdt.transport.blobs import one_time, reference
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, pool_pb2
from tests.helpers.intruder import Call, attach, joined
from tests.helpers.toy_engine import ROOT
from tests.helpers.train_stream import LIMIT_S, TrainStream
from tests.integration.test_pool import TIMING, TOKEN, Pool, program

OK, REFUSED, NONSENSE = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT
PROGRAM = "MatMul"
LOOPBACK = Network("lo", "127.0.0.1", "127.0.0.0/8")


@pytest.fixture(scope="module", autouse=True)
def _import_toy_engine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


class Person:
    """Somebody with a token, and a connection."""

    def __init__(self, pool: Pool, token: str) -> None:
        self.channel = rpc.connect(pool.address, Credentials(token), TIMING)
        self.blobs = BlobClient(self.channel, TIMING)

    def ask(self, method: str, request: Message | bytes, reply: type[Any]) -> tuple[grpc.StatusCode, list[Any]]:
        """Calls a method with one message; returns the status, and what came."""
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        call = self.channel.stream_stream(f"/{method}", response_deserializer=reply.FromString)(
            iter([raw]), timeout=LIMIT_S
        )
        came: list[Any] = []
        with contextlib.suppress(grpc.RpcError):
            came.extend(call)
        return call.code(), came

    def upload(self, content: Any) -> blobs_pb2.BlobRef:
        ref = reference(content)
        self.blobs.upload([(ref, content)])
        return ref

    def train(self, session: bytes = b"", script: str = "secret.py", **options: str) -> TrainStream:
        opening = job_pb2.OpenJob(
            mode="sync", num_workers=1, script=script, options=options, session=session, versions=versions()
        )
        return TrainStream(self.channel, 1, {}, opening=job_pb2.Instruction(open=opening).SerializeToString())

    def running(self, session: bytes = b"", **options: str) -> TrainStream:
        """A job that has made a step."""
        stream = self.train(session, **options)
        stream.load(self.upload(program(PROGRAM)))
        stream.bind(array(self.upload(np.arange(10.0))))
        stream.run([[1]])
        stream.wait("progress")
        return stream

    def jobs(self) -> dict[str, pool_pb2.JobSummary]:
        _, (reply,) = self.ask("fdt.v1.Pool/ListJobs", pool_pb2.ListJobsRequest(), pool_pb2.ListJobsReply)
        return {job.job: job for job in reply.jobs}


def array(ref: blobs_pb2.BlobRef) -> job_pb2.Array:
    return job_pb2.Array(tensor={"name": "x", "dtype": "float64"}, blob=ref)


@dataclasses.dataclass
class Team:
    """A pool with two persons."""

    pool: Pool
    tokens: Path
    audit_log: Path
    anna: Person
    bob: Person
    operator: Person

    def close(self) -> None:
        for person in (self.anna, self.bob, self.operator):
            person.channel.close()
        self.pool.close()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]


def team(folder: Path, num_workers: int = 2, **config: Any) -> Team:
    tokens, audit_log = folder / "tokens.json", folder / "audit.log"
    given = {name: token_file.add(tokens, name, 0.0) for name in ("anna", "bob")}
    pool = Pool(num_workers, tokens=tokens, audit_log=audit_log, **config)
    return Team(pool, tokens, audit_log, *(Person(pool, token) for token in (*given.values(), TOKEN)))


@pytest.fixture
def of_two(tmp_path: Path) -> Iterator[Team]:
    found = team(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Team, "Annas"]]:
    """A pool in which Anna has something of each kind."""
    found = team(tmp_path_factory.mktemp("team"))
    yield found, Annas.of(found.anna)
    found.close()


@pytest.fixture(scope="module")
def of_sharers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Team, "Annas"]]:
    found = team(tmp_path_factory.mktemp("sharers"), share=True)
    yield found, Annas.of(found.anna)
    found.close()


# ---- every method of a client's -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Annas:
    """What is Anna's: a job that has ended, and a blob."""

    job: str
    blob: blobs_pb2.BlobRef

    @classmethod
    def of(cls, anna: Person) -> "Annas":
        anna.running().close()
        # The list has it once the job has ended.
        (job,) = anna.jobs()
        return cls(job, anna.upload(np.arange(77.0)))


Answer = tuple[grpc.StatusCode, Any]


def list_jobs(who: Person, annas: Annas) -> Answer:
    status, (reply,) = who.ask("fdt.v1.Pool/ListJobs", pool_pb2.ListJobsRequest(), pool_pb2.ListJobsReply)
    (job,) = (job for job in reply.jobs if job.job == annas.job)
    assert (job.owner, job.mode, job.steps) == ("anna", "sync", 1)
    return status, job.script


def view(who: Person, annas: Annas) -> Answer:
    status, (reply,) = who.ask("fdt.v1.Pool/View", pool_pb2.ViewRequest(), pool_pb2.ViewReply)
    (job,) = (job for job in json.loads(reply.view)["jobs"] if job["name"] == annas.job)
    assert job["owner"] == "anna"
    return status, job["script"]


def get_logs(who: Person, annas: Annas) -> Answer:
    status, chunks = who.ask("fdt.v1.Pool/GetLogs", pool_pb2.GetLogsRequest(job=annas.job), pool_pb2.LogChunk)
    return status, bool(chunks)


def cancel(who: Person, annas: Annas) -> Answer:
    request = pool_pb2.CancelJobRequest(job=annas.job)
    status, replies = who.ask("fdt.v1.Pool/CancelJob", request, pool_pb2.CancelJobReply)
    return status, [reply.state for reply in replies]


def train(who: Person, annas: Annas) -> Answer:
    """Trains on Anna's array, of which it says the name."""
    stream = who.train(script="other.py")
    stream.load(who.upload(program(PROGRAM)))
    stream.bind(array(annas.blob))
    stream.run([[3]])
    stream._wait(lambda: stream.kinds("progress") or stream.kinds("failed"))
    trained = not stream.kinds("failed")
    if trained:
        stream.close()
    return stream.status(), trained


def find_missing(who: Person, annas: Annas) -> Answer:
    request = blobs_pb2.FindMissingRequest(blobs=[annas.blob])
    status, (reply,) = who.ask("fdt.v1.Blobs/FindMissing", request, blobs_pb2.FindMissingReply)
    return status, len(reply.missing)


def put(who: Person, _: Annas) -> Answer:
    ref = one_time(4)
    status, _ = who.ask("fdt.v1.Blobs/Put", blobs_pb2.PutChunk(blob=ref, data=b"1234"), blobs_pb2.PutReply)
    return status, bytes(who.blobs.download(ref))


def get(who: Person, annas: Annas) -> Answer:
    status, chunks = who.ask("fdt.v1.Blobs/Get", annas.blob, blobs_pb2.GetChunk)
    return status, b"".join(chunk.data for chunk in chunks) == np.arange(77.0).tobytes()


def attach_host(who: Person, _: Annas) -> Answer:
    hello = host_pb2.Hello(name="h", num_workers=1, num_cores=1, address="127.0.0.1", versions=host_versions())
    return who.ask("fdt.v1.Hosts/Attach", host_pb2.HostEvent(hello=hello), host_pb2.HostInstruction)


def ask_only(method: str, request: Message, reply: type[Any]) -> Callable[[Person, Annas], Answer]:
    return lambda who, _: (who.ask(method, request, reply)[0], None)


SEEN, UNSEEN, ENDED = (OK, "secret.py"), (OK, ""), (OK, ["finished"])
# Of each method: what is asked, what Anna is answered, what Bob, what the operator, and what Bob is where all share.
METHODS: dict[str, tuple[Callable[[Person, Annas], Answer], Answer, Answer, Answer, Answer]] = {
    "grpc.health.v1.Health/Check": (
        ask_only("grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse),
        *4 * ((OK, None),),
    ),
    "fdt.v1.Pool/Describe": (
        ask_only("fdt.v1.Pool/Describe", pool_pb2.DescribeRequest(), pool_pb2.DescribeReply),
        *4 * ((OK, None),),
    ),
    "fdt.v1.Pool/ListJobs": (list_jobs, SEEN, UNSEEN, SEEN, SEEN),
    "fdt.v1.Pool/View": (view, SEEN, UNSEEN, SEEN, SEEN),
    "fdt.v1.Pool/GetLogs": (get_logs, (OK, True), (REFUSED, False), (OK, True), (OK, True)),
    "fdt.v1.Pool/CancelJob": (cancel, ENDED, (REFUSED, []), ENDED, ENDED),
    "fdt.v1.Pool/OpenPage": (
        ask_only("fdt.v1.Pool/OpenPage", pool_pb2.OpenPageRequest(), pool_pb2.OpenPageReply),
        (REFUSED, None),
        (REFUSED, None),
        (OK, None),
        (REFUSED, None),
    ),
    "fdt.v1.Jobs/Train": (train, (OK, True), (NONSENSE, False), (OK, True), (OK, True)),
    "fdt.v1.Blobs/FindMissing": (find_missing, (OK, 0), (OK, 1), (OK, 0), (OK, 0)),
    "fdt.v1.Blobs/Put": (put, *4 * ((OK, b"1234"),)),
    "fdt.v1.Blobs/Get": (get, (OK, True), (NONSENSE, False), (OK, True), (OK, True)),
    # The pool takes no hosts: its operator is told so.
    "fdt.v1.Hosts/Attach": (attach_host, (REFUSED, []), (REFUSED, []), (NONSENSE, []), (REFUSED, [])),
}


def test_every_method_has_a_rule_and_is_tried() -> None:
    """Of workers' own see `test_worker_keys`: no token of a client's or a host's opens them."""
    files = (blobs_pb2, job_pb2, pool_pb2, host_pb2)
    methods = {
        f"{service.full_name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert len(methods) > 10
    assert methods | {"grpc.health.v1.Health/Check"} == set(METHODS) == set(RULES)


@pytest.mark.parametrize("method", METHODS)
def test_who_may_do_what(of_all: tuple[Team, Annas], method: str) -> None:
    pool, annas = of_all
    asked, annas_own, bobs, operators, _ = METHODS[method]
    assert asked(pool.bob, annas) == bobs
    assert asked(pool.anna, annas) == annas_own
    assert asked(pool.operator, annas) == operators


@pytest.mark.parametrize("method", METHODS)
def test_who_shares_may_do_what_a_client_could(of_sharers: tuple[Team, Annas], method: str) -> None:
    pool, annas = of_sharers
    assert METHODS[method][0](pool.bob, annas) == METHODS[method][4]


@pytest.mark.parametrize("method", METHODS)
def test_a_stranger_may_do_nothing(of_all: tuple[Team, Annas], method: str) -> None:
    with rpc.open_channel(of_all[0].pool.address, Credentials("x" * 64), TIMING) as channel:
        call = channel.stream_stream(f"/{method}")(iter([b""]), timeout=LIMIT_S)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() == REFUSED


# ---- what is whose --------------------------------------------------------------------------------------------------


def test_content_is_whose_bytes_have_come_from_them(of_two: Team) -> None:
    """The store keeps one copy; who knows the name alone has nothing."""
    content = os.urandom(1 << 20)
    ref = of_two.anna.upload(content)
    assert of_two.bob.blobs.find_missing([ref]) == [ref] and of_two.anna.blobs.find_missing([ref]) == []
    with pytest.raises(ProtocolError, match="does not hold this blob"):
        of_two.bob.blobs.download(ref)
    # A name with other content is no proof.
    with pytest.raises(ProtocolError, match="not what its name says"):
        of_two.bob.blobs.send(ref, [bytes(1 << 20)])
    assert of_two.bob.blobs.find_missing([ref]) == [ref]
    assert bytes(of_two.anna.blobs.download(ref)) == content
    store = of_two.pool.server._supervisor.store  # type: ignore[union-attr]
    before = len(list(store.directory.iterdir()))
    assert of_two.bob.upload(content) == ref
    assert bytes(of_two.bob.blobs.download(ref)) == content == bytes(of_two.anna.blobs.download(ref))
    assert len(list(store.directory.iterdir())) == before
    # Nothing is kept of who had what is gone.
    store.drop(ref)
    assert store._owners.keys() == {each.name for each in store.directory.iterdir()}


@pytest.mark.parametrize("kind", ["load", "bind", "assign", "run"])
def test_no_instruction_names_what_is_anothers(of_two: Team, kind: str) -> None:
    lasting, once = of_two.anna.upload(program(PROGRAM)), one_time(8)
    of_two.anna.blobs.send(once, [bytes(8)])
    stream = of_two.bob.train()
    {
        "load": lambda: stream.load(lasting),
        "bind": lambda: stream.bind(array(lasting)),
        "assign": lambda: stream.assign_blob(once),
        "run": lambda: stream.run_blob(once),
    }[kind]()
    failed = stream.wait("failed").failed
    assert failed.error == "ProtocolError" and "does not hold this blob" in failed.message
    assert stream.status() == NONSENSE and of_two.anna.blobs.find_missing([lasting, once]) == []


def test_what_workers_have_made_is_their_jobs_owners(of_two: Team) -> None:
    stream = of_two.anna.running(result_bytes=str(1 << 20))
    stream.run([[2]], results=True)
    made = stream.wait("results").results.outputs.blob
    assert made.size_bytes == 1 << 20
    with pytest.raises(ProtocolError, match="does not hold this blob"):
        of_two.bob.blobs.download(made)
    assert len(of_two.anna.blobs.download(made)) == 1 << 20
    stream.close()


def test_what_a_worker_on_a_host_has_made_is_its_jobs_owners(tmp_path: Path) -> None:
    found = team(tmp_path, num_workers=0, network=LOOPBACK)
    try:
        with (
            rpc.open_channel(found.pool.address, Credentials(), TIMING) as channel,
            joined(channel, TOKEN, 1) as starts,
        ):
            ((name, secret),) = starts.items()
            worker = attach(channel, name, secret)
            client, made = found.anna.train(), one_time(5)
            chunk = blobs_pb2.PutChunk(blob=made, data=b"state")
            put_blob = Call(channel, "Workers/PutBlob", blobs_pb2.PutReply, worker.next().assignment.key)
            assert put_blob.send(chunk).outcome()[0] == OK
            assert bytes(found.anna.blobs.download(made)) == b"state"
            with pytest.raises(ProtocolError, match="does not hold this blob"):
                found.bob.blobs.download(made)
            client.cancel()
    finally:
        found.close()


def test_nobody_goes_on_with_anothers_session(of_two: Team) -> None:
    session = os.urandom(16)
    first = of_two.anna.running(session)
    (job,) = of_two.anna.jobs()
    of_two.bob.running(session).close()
    assert of_two.anna.jobs()[job].state == "running"
    second = of_two.anna.running(session)
    first.wait_end()
    assert of_two.anna.jobs()[job].state == "cancelled" and "goes on as job-3" in of_two.anna.jobs()[job].reason
    second.close()


def test_a_job_that_runs_is_its_owners_to_cancel(of_two: Team) -> None:
    stream = of_two.anna.running()
    ((job, summary),) = of_two.anna.jobs().items()
    assert (summary.owner, summary.script) == ("anna", "secret.py")
    assert (of_two.bob.jobs()[job].owner, of_two.bob.jobs()[job].script) == ("anna", "")
    for method, request in (
        ("CancelJob", pool_pb2.CancelJobRequest(job=job)),
        ("GetLogs", pool_pb2.GetLogsRequest(job=job)),
    ):
        assert of_two.bob.ask(f"fdt.v1.Pool/{method}", request, pool_pb2.LogChunk) == (REFUSED, [])
    assert of_two.anna.jobs()[job].state == "running"
    assert (
        of_two.operator.ask("fdt.v1.Pool/CancelJob", pool_pb2.CancelJobRequest(job=job), pool_pb2.CancelJobReply)[0]
        == OK
    )
    assert stream.wait("failed").failed.error == "JobCancelledError"
    # What has failed says what the script did, so it is not told either.
    assert of_two.bob.jobs()[job].reason == "" and of_two.anna.jobs()[job].reason


def test_the_list_is_kept_with_owners(tmp_path: Path) -> None:
    from fdt.pool.journal import Entry, Journal
    from fdt.pool.state.entities import Job, JobState

    journal = Journal(tmp_path)
    job = Job("job-1", "sync", 1, "a.py", 1.0, state=JobState.FINISHED, owner="anna")
    journal.write([Entry.of(job, 3)], [])
    journal.close()
    journal = Journal(tmp_path)
    assert [entry.job().owner for entry in journal.entries()] == ["anna"]
    journal.close()


# ---- tokens that end ------------------------------------------------------------------------------------------------


def test_jobs_of_a_token_that_is_revoked_end_and_say_why(of_two: Team) -> None:
    running, bobs = of_two.anna.running(), of_two.bob.running()
    queued = of_two.anna.train()
    queued.wait("queued")
    token_file.revoke(of_two.tokens, "anna")
    for stream in (running, queued):
        failed = stream.wait("failed").failed
        assert failed.error == "AccessError" and "The token of anna was revoked" in failed.message
    with pytest.raises(AccessError, match="does not accept this token"):
        of_two.anna.blobs.find_missing([])
        of_two.anna.upload(b"more")
    assert {job.reason for job in of_two.operator.jobs().values() if job.owner == "anna"} == {failed.message}
    # A new token of the same name brings none of them back, and leaves others alone.
    anna = Person(of_two.pool, token_file.add(of_two.tokens, "anna", 0.0))
    bobs.run([[1]])
    bobs.close()
    assert anna.jobs()["job-1"].script == "secret.py"
    anna.channel.close()
    assert {line["job"] for line in of_two.told("job ended")} == {"job-1", "job-3"}
    assert [(line["added"], line["revoked"]) for line in of_two.told("tokens changed")] == [("", "anna"), ("anna", "")]


def test_a_token_that_expires_ends_its_jobs(of_two: Team) -> None:
    persons = of_two.pool.server._persons
    assert persons is not None
    token = token_file.add(of_two.tokens, "carl", 1000.0, 60.0)
    persons._clock = lambda: 1059.0
    carl = Person(of_two.pool, token)
    stream = carl.running()
    persons._clock = lambda: 1060.0
    failed = stream.wait("failed").failed
    assert failed.error == "AccessError" and "The token of carl has expired" in failed.message
    status, _ = carl.ask("fdt.v1.Pool/ListJobs", pool_pb2.ListJobsRequest(), pool_pb2.ListJobsReply)
    assert status == REFUSED
    carl.channel.close()
    refused = of_two.told("refused")[-1]
    assert refused["who"] == "carl" and "has expired" in refused["reason"]


def test_an_upload_that_goes_on_is_ended_too(of_two: Team) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(1 << 20)
        token_file.revoke(of_two.tokens, "anna")
        yield bytes(1 << 20)

    with pytest.raises(AccessError, match="The token of anna was revoked"):
        of_two.anna.blobs.send(one_time(2 << 20), pieces())


def test_a_download_that_goes_on_is_ended_too(of_two: Team) -> None:
    ref = of_two.anna.upload(bytes(64 << 20))
    chunks = of_two.anna.blobs.chunks(ref)
    next(chunks)
    token_file.revoke(of_two.tokens, "anna")
    with pytest.raises(AccessError, match="The token of anna was revoked"):
        list(chunks)


# ---- bounds ---------------------------------------------------------------------------------------------------------


def begun(who: Person) -> TrainStream:
    """A job that the pool has taken: it waits or runs."""
    stream = who.train()
    stream._wait(lambda: stream.seen)
    return stream


def test_bounds_are_of_a_person_not_of_a_connection(tmp_path: Path) -> None:
    found = team(tmp_path, limits=Limits(jobs_each=2))
    try:
        streams = [found.anna.running()]
        token = token_file.add(found.tokens, "carl", 0.0)
        many = [Person(found.pool, token) for _ in range(3)]
        for carl in many[:2]:
            streams.append(begun(carl))
        refused = many[2].train()
        refused.wait_end()
        assert refused.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 jobs of one client" in refused._call.details()
        streams.append(begun(found.bob))
        for stream in streams:
            stream.cancel()
        for carl in many:
            carl.channel.close()
    finally:
        found.close()


# ---- the audit log --------------------------------------------------------------------------------------------------


def test_what_is_written_down(tmp_path: Path) -> None:
    found = team(tmp_path, network=LOOPBACK)
    try:
        found.anna.running().close()
        refused = found.bob.train(script="bad\x1b[2J.py")
        refused.load(found.bob.upload(program("ReadFile")))
        assert refused.wait("failed").failed.error == "ProgramRefusedError"
        for who in (found.bob, found.anna):
            for method in ("GetLogs", "CancelJob"):
                who.ask(f"fdt.v1.Pool/{method}", pool_pb2.GetLogsRequest(job="job-1"), pool_pb2.LogChunk)
        with pytest.raises(AccessError):
            Person(found.pool, "a wrong token, which no log may hold")
        hello = host_pb2.Hello(
            name="far", num_workers=1, num_cores=1, address="127.0.0.1", interface="lo", versions=host_versions()
        )
        host = host_pb2.HostEvent(hello=hello).SerializeToString()
        found.operator.ask("fdt.v1.Hosts/Attach", host, host_pb2.HostInstruction)
    finally:
        found.close()
    written = [
        {name: each[name] for name in ("event", "who", "job", "script", "host", "method") if name in each}
        for each in found.lines()
    ]
    assert written == [
        {"event": "job opened", "who": "anna", "job": "job-1", "script": "secret.py"},
        {"event": "job opened", "who": "bob", "job": "job-2", "script": "bad\x1b[2J.py"},
        {"event": "program refused", "who": "bob", "job": "job-2"},
        {"event": "refused", "who": "bob", "job": "job-1", "method": "logs fetched"},
        {"event": "refused", "who": "bob", "job": "job-1", "method": "job cancelled"},
        {"event": "logs fetched", "who": "anna", "job": "job-1"},
        {"event": "job cancelled", "who": "anna", "job": "job-1"},
        {"event": "refused", "who": "", "method": "grpc.health.v1.Health/Check"},
        {"event": "host attached", "who": "operator", "host": "far (127.0.0.1)"},
    ]
    raw = found.audit_log.read_text()
    assert "ReadFile" in raw and "\x1b" not in raw and found.audit_log.stat().st_mode & 0o777 == 0o600
    peers = [each["peer"] for each in found.lines() if "peer" in each]
    assert len(peers) == 8 and all(peer.startswith("ipv4:127.0.0.1:") for peer in peers)
    secrets = (TOKEN, "a wrong token", *(each.sha256 for each in token_file.read(found.tokens)))
    assert not [each for each in secrets if each in raw]


def test_guesses_do_not_fill_the_log(of_two: Team) -> None:
    with rpc.open_channel(of_two.pool.address, Credentials("x" * 64), TIMING) as channel:
        check = channel.unary_unary(f"/{rpc.HEALTH}/Check")
        for _ in range(200):
            with pytest.raises(grpc.RpcError):
                check(b"", timeout=LIMIT_S)
    assert 0 < len(of_two.told("refused")) <= 60


def test_a_pool_without_persons_is_as_before(tmp_path: Path) -> None:
    pool = Pool(1, tokens=tmp_path / "none", audit_log=tmp_path / "audit.log")
    try:
        one, other = Person(pool, TOKEN), Person(pool, TOKEN)
        ref = one.upload(b"shared")
        assert bytes(other.blobs.download(ref)) == b"shared"
        stream = one.running()
        assert [(job.owner, job.script) for job in other.jobs().values()] == [("", "secret.py")]
        stream.close()
        # The file may come later.
        carl = Person(pool, token_file.add(tmp_path / "none", "carl", 0.0))
        assert [(job.owner, job.script) for job in carl.jobs().values()] == [("", "")]
        for each in (one, other, carl):
            each.channel.close()
    finally:
        pool.close()
