"""The values through which the processes of a job find each other."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from fdt.base.config import Credentials, Timing
from fdt.base.limits import DEFAULT
from fdt.errors import AccessError, ProtocolError, WorkerError
from fdt.transport import rpc
from fdt.transport.rate_limits import RateLimiter
from fdt.v1 import worker_pb2
from fdt.worker import rendezvous
from fdt.worker.rendezvous import PoolRendezvous, RendezvousTable

TIMING = Timing(connect_s=5.0, call_s=5.0)


@pytest.fixture
def places() -> RendezvousTable:
    return RendezvousTable()


def test_what_one_process_says_others_of_its_job_hear(places: RendezvousTable) -> None:
    places.open("job-1", 2)
    assert places.get("job-1", "a") is None
    places.put("job-1", "a", b"\x00\xff")
    assert places.get("job-1", "a") == b"\x00\xff"
    places.put("job-1", "a", b"")
    assert places.get("job-1", "a") == b""


def test_another_job_has_values_of_its_own(places: RendezvousTable) -> None:
    for job in ("job-1", "job-2"):
        places.open(job, 2)
    places.put("job-1", "a", b"secret")
    assert places.get("job-2", "a") is None
    for other in ("", "job-3"):
        with pytest.raises(ProtocolError, match="has ended"):
            places.get(other, "a")
        with pytest.raises(ProtocolError, match="has ended"):
            places.put(other, "a", b"")
    assert places.get("job-1", "a") == b"secret"


def test_nothing_is_left_of_a_job_that_has_ended(places: RendezvousTable) -> None:
    places.open("job-1", 2)
    places.put("job-1", "a", b"secret")
    places.close("job-1")
    places.close("job-1")
    with pytest.raises(ProtocolError):
        places.get("job-1", "a")
    assert places._values == {}


def test_a_value_and_a_key_have_limits(places: RendezvousTable) -> None:
    places.open("job-1", 2)
    places.put("job-1", "k" * rendezvous.MAX_KEY_BYTES, bytes(rendezvous.MAX_VALUE_BYTES))
    for name, value in (("k" * (rendezvous.MAX_KEY_BYTES + 1), b""), ("v", bytes(rendezvous.MAX_VALUE_BYTES + 1))):
        with pytest.raises(ProtocolError, match="at most 1048576 bytes under keys of at most 256"):
            places.put("job-1", name, value)
        assert places.get("job-1", name) is None


def test_a_job_has_limits(places: RendezvousTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_JOB_BYTES", 10)
    monkeypatch.setattr(rendezvous, "MAX_PAIR_BYTES", 5)
    monkeypatch.setattr(rendezvous, "MAX_KEYS", 3)
    places.open("job-1", 2)
    places.put("job-1", "a", bytes(30))
    with pytest.raises(ProtocolError, match="Received: 2 values, 31 bytes"):
        places.put("job-1", "b", bytes(1))
    # What takes another's place counts once.
    places.put("job-1", "a", bytes(29))
    places.put("job-1", "b", b"")
    places.put("job-1", "c", b"")
    with pytest.raises(ProtocolError, match="Received: 4 values, 29 bytes"):
        places.put("job-1", "d", b"")
    places.put("job-1", "c", b"1")
    assert [places.get("job-1", name) for name in "bcd"] == [b"", b"1", None]


# ---- over the channel on which workers attach -----------------------------------------------------------------------


class Servicer:
    """The two calls of `fdt.v1.Workers` as the pool answers them, for a worker of one job."""

    def __init__(self, places: RendezvousTable) -> None:
        self._places = places

    def PutValue(self, request: worker_pb2.PutValueRequest, _: object) -> worker_pb2.PutValueReply:
        self._places.put("job-1", request.key, request.value)
        return worker_pb2.PutValueReply()

    def GetValue(self, request: worker_pb2.GetValueRequest, _: object) -> worker_pb2.GetValueReply:
        return worker_pb2.GetValueReply(value=self._places.get("job-1", request.key))


@contextmanager
def serving(places: RendezvousTable, directory: Path) -> Iterator[str]:
    workers = worker_pb2.DESCRIPTOR.services_by_name["Workers"]
    limiter = RateLimiter(DEFAULT, TIMING, num_workers=2)
    asked = rpc.RequireToken(lambda _, given: None if given == b"workers'" else "wrong")
    server = rpc.create_server(asked, limiter, DEFAULT, TIMING)
    server.add_generic_rpc_handlers((rpc.service(workers, Servicer(places), limiter),))
    address = rpc.listen(server, f"unix:{directory}/workers.sock")
    server.start()
    try:
        yield address
    finally:
        server.stop(0).wait(5.0)


@contextmanager
def channel(address: str, token: str) -> Iterator[grpc.Channel]:
    opened = rpc.open_channel(address, Credentials(token), TIMING)
    try:
        yield opened
    finally:
        opened.close()


def test_a_value_is_waited_for(places: RendezvousTable, tmp_path: Path) -> None:
    places.open("job-1", 2)
    with serving(places, tmp_path) as address, channel(address, "workers'") as opened:
        one, other = (PoolRendezvous(opened, TIMING) for _ in range(2))
        found: list[bytes] = []
        waiting = threading.Thread(target=lambda: found.append(one.wait("a", 20.0)))
        waiting.start()
        assert other.get("a") is None
        other.put("a", b"\x00\xff")
        waiting.join(20.0)
        assert found == [b"\x00\xff"]
        with pytest.raises(WorkerError, match="did not set host/1 within 0 s"):
            one.wait("host/1", 0.0)


def test_who_is_no_worker_hears_nothing(places: RendezvousTable, tmp_path: Path) -> None:
    places.open("job-1", 2)
    places.put("job-1", "a", b"secret")
    with serving(places, tmp_path) as address:
        with channel(address, "clients'") as opened, pytest.raises(AccessError):
            PoolRendezvous(opened, TIMING).get("a")
        with channel(address, "workers'") as opened:
            meeting = PoolRendezvous(opened, TIMING)
            assert meeting.get("a") == b"secret"
            with pytest.raises(ProtocolError, match="at most 1048576 bytes"):
                meeting.put("b", bytes(rendezvous.MAX_VALUE_BYTES + 1))
            places.close("job-1")
            with pytest.raises(ProtocolError, match="has ended"):
                meeting.get("a")
