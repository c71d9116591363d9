"""Every method of every service with messages that nobody would send, to a living pool, with its token.

More of them: FDT_FUZZ_EXAMPLES=5000 (as `make fuzz` does).
"""

import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor

pytest.importorskip("hypothesis", reason="hypothesis is for developers")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdt.base.network import trusted
from fdt.base.versions import host_versions
from fdt.pool.services.blobs import Blobs
from fdt.pool.services.workers import Workers
from fdt.transport import rpc
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, pool_pb2, worker_pb2
from tests.helpers.toy_engine import ROOT
from tests.helpers.wild_messages import raw
from tests.integration.test_pool import TIMING, Pool, train_ten_steps

EXAMPLES = int(os.environ.get("FDT_FUZZ_EXAMPLES", "50"))
_LIMIT_S = 20.0
_METHODS = [
    method
    for file in (blobs_pb2, job_pb2, worker_pb2, host_pb2, pool_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
# What a handler that met something it had not thought of answers.
_CRASHED = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}
_FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FDT_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """One for all: whatever it was sent, it serves the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        pool = Pool(network=trusted("lo", None))
        yield pool
        pool.close()


@pytest.fixture(scope="module")
def insider(pool: Pool) -> Iterator[grpc.Channel]:
    """A channel of a worker that serves a job, and may attach once more."""
    keys, table = pool.server._supervisor.hosts.worker_keys, pool.server._supervisor.rendezvous_table
    keys.attach("wild", keys.issue("wild").encode())
    table.open("wild", 1)
    tokens = Tokens(attach=keys.issue("wild again"), others=keys.assign("wild", "wild"))
    with grpc.insecure_channel(pool.address) as channel:
        yield grpc.intercept_channel(channel, tokens)


class Tokens(grpc.StreamStreamClientInterceptor):
    """Sends another one to attach."""

    def __init__(self, attach: str, others: str) -> None:
        self._attach, self._others = rpc.SendToken(attach), rpc.SendToken(others)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        token = self._attach if details.method.endswith("/Attach") else self._others
        return token.intercept_stream_stream(continuation, details, requests)


@pytest.fixture
def uncaught(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[list[object]]:
    """What ended a thread of the pool, or a handler."""
    met: list[object] = []
    monkeypatch.setattr("threading.excepthook", met.append)
    yield met
    met += [record.getMessage() for record in caplog.records if record.name.startswith("grpc")]
    assert met == []


def ask(channel: grpc.Channel, method: MethodDescriptor, messages: list[bytes]) -> grpc.StatusCode:
    """Sends them all and ends the stream; returns the status."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    call = channel.stream_stream(name)(iter(messages), timeout=_LIMIT_S)
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    return call.code()


def first_of(method: MethodDescriptor) -> list[bytes]:
    """Returns what gets a stream past its first message."""
    if method.containing_service.name == "Jobs":
        return [job_pb2.Instruction(open=job_pb2.OpenJob(mode="sync", num_workers=1)).SerializeToString()]
    return []


@pytest.mark.parametrize("method", _METHODS, ids=lambda method: f"{method.containing_service.name}.{method.name}")
def test_any_message(pool: Pool, insider: grpc.Channel, uncaught: list[object], method: MethodDescriptor) -> None:
    channel = insider if method.containing_service.name == "Workers" else pool.channel
    message: Descriptor = method.input_type

    @_FUZZ
    @given(st.lists(raw(message), max_size=4 if method.client_streaming else 1), st.booleans())
    def send(messages: list[bytes], opened: bool) -> None:
        status = ask(channel, method, [*(first_of(method) if opened else []), *messages])
        assert status not in _CRASHED, (status, messages)

    send()
    train_ten_steps(pool)


@pytest.mark.parametrize("offered", [1, 3])
def test_any_event_of_a_host_that_joined(pool: Pool, uncaught: list[object], offered: int) -> None:
    attach = next(method for method in _METHODS if method.full_name == "fdt.v1.Hosts.Attach")
    hello = host_pb2.Hello(
        name="wild", num_workers=offered, num_cores=1, address="127.0.0.1", interface="lo", versions=host_versions()
    )
    ends = [host_pb2.HostEvent(hello=hello).SerializeToString(), host_pb2.HostEvent(goodbye={}).SerializeToString()]

    @_FUZZ
    @given(st.lists(raw(host_pb2.HostEvent.DESCRIPTOR), max_size=4))
    def send(messages: list[bytes]) -> None:
        # Whatever it says, it is let go in the end, with a word.
        assert ask(pool.channel, attach, [ends[0], *messages, ends[1]]) == grpc.StatusCode.OK

    send()
    train_ten_steps(pool)


def test_any_event_of_a_worker(pool: Pool, uncaught: list[object]) -> None:
    """A program that got the better of its worker process speaks with its voice: only its own job suffers."""
    supervisor = pool.server._supervisor
    blobs = Blobs(supervisor.store, supervisor.limits, TIMING, pool.server._access)
    workers = Workers(supervisor, supervisor.own_keys, blobs)

    @_FUZZ
    @given(st.lists(raw(worker_pb2.WorkerEvent.DESCRIPTOR), max_size=6))
    def send(messages: list[bytes]) -> None:
        if streams and streams[-1].ended:
            streams.append(pool.train(1))
            streams[-1].wait("started")
        name = pool.server._supervisor.logs(list(pool.jobs())[-1])[0].stem
        workers._take(name, iter(messages))

    streams = [pool.train(1)]
    streams[0].wait("started")
    send()
    for stream in streams:
        stream.cancel()
        stream.wait_end()
    train_ten_steps(pool)
