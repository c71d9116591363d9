"""What a job's relay remembers of blobs is changed and looked at by the threads of its client and of its workers."""

import sys
import threading
from collections.abc import Iterator

import pytest

from fdt.base.limits import DEFAULT
from fdt.pool.access import Caller
from fdt.pool.relay import JobRelay, Outbox, Room
from fdt.v1 import blobs_pb2, job_pb2

_DRAINS = 2000


@pytest.fixture
def _switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def ref(number: int) -> blobs_pb2.BlobRef:
    return blobs_pb2.BlobRef(digest=number.to_bytes(8, "big"))


@pytest.mark.usefixtures("_switching")
def test_a_clients_states_arrive_while_workers_answer_and_others_look() -> None:
    relay = JobRelay("a", Caller(), b"", DEFAULT, Room(1 << 20))
    relay.assign([Outbox(1 << 20)])
    errors, over, room = list[BaseException](), threading.Event(), threading.Semaphore(DEFAULT.pending - 1)
    served = list[bytes]()

    def looks() -> None:
        try:
            while not over.is_set():
                relay.passing_blobs()
        except BaseException as error:
            errors.append(error)

    def answers() -> None:
        try:
            for serial in range(_DRAINS):
                while serial not in relay._arriving:
                    assert not over.is_set()
                served.extend(each.digest for each in relay.served_blobs(job_pb2.Drained(serial=serial)))
                room.release()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target) for target in (looks, looks, answers)]
    for thread in threads:
        thread.start()
    for serial in range(_DRAINS):
        room.acquire(timeout=60)
        relay.assigned_blobs([ref(serial)])
        relay.drain_asked(serial, keep=False)
    threads[-1].join(60)
    over.set()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert served == [ref(serial).digest for serial in range(_DRAINS)]
