"""Bounds where no process is needed: boxes of messages, threads of calls, names, room on a disk."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.base.limits import DEFAULT, Limits, changed, check_name, cut
from fdt.errors import CapacityError, UsageError
from fdt.pool.access import Caller
from fdt.pool.relay import JobRelay, Outbox, Room
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import one_time, reference
from fdt.transport.rate_limits import CallThreads
from tests.helpers.blobs import write

LIMIT_S = 20.0


def test_a_box_that_is_full_loses_all_and_says_so_once() -> None:
    told: list[str] = []
    box = Outbox(10, on_full=told.append)
    for message in (b"12345", b"12345", b"1", b"2"):
        box.put(message)
    assert told == ["10 bytes"] and list(box) == []


def test_pieces_of_a_stream_that_no_worker_has_read_are_bounded() -> None:
    relay = JobRelay("job-1", Caller(), b"", dataclasses.replace(DEFAULT, pending=10), Room(1 << 20))
    relay.assign([Outbox(1 << 20)])
    for data in range(10):
        relay.streamed(data, [one_time(8)])
    with pytest.raises(CapacityError, match="10 pieces of a stream"):
        relay.streamed(10, [one_time(8)])
    # Once a piece is read there is room for another.
    assert len(relay.released(0)) == 1
    relay.streamed(10, [one_time(8)])


def test_one_message_may_be_larger_than_the_bound() -> None:
    box = Outbox(10)
    box.put(b"x" * 100)
    box.close()
    assert list(box) == [b"x" * 100]


def test_boxes_share_room_and_give_it_back() -> None:
    room, told = Room(10), []
    first, second = Outbox(10, room), Outbox(10, room, told.append)
    first.put(b"x" * 8)
    second.put(b"x" * 3)
    assert told == ["10 bytes with those of others"]
    first.close()
    assert list(first) == [b"x" * 8] and room.take(10)


def test_a_box_that_is_closed_at_once_keeps_nothing() -> None:
    room = Room(10)
    box = Outbox(10, room)
    box.put(b"x" * 10)
    box.close(at_once=True)
    box.put(b"late")
    assert list(box) == [] and room.take(10)


def test_whoever_waits_for_room_goes_on_when_it_is_there_or_the_box_is_closed() -> None:
    for let_go in (lambda box: next(iter(box)), lambda box: box.close(at_once=True)):
        box, went_on = Outbox(10), threading.Event()
        box.put(b"x" * 9)

        def wait(box: Outbox = box, went_on: threading.Event = went_on) -> None:
            box.wait_room()
            went_on.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not went_on.is_set()
        let_go(box)
        thread.join(LIMIT_S)
        assert went_on.is_set()


def test_calls_have_a_thread_each_at_once_and_threads_end() -> None:
    threads, meet = CallThreads(), threading.Barrier(20)
    futures = [threads.submit(meet.wait, LIMIT_S) for _ in range(20)]
    assert sorted(future.result(LIMIT_S) for future in futures) == list(range(20))
    again = [threads.submit(threading.current_thread) for _ in range(100)]
    used = {future.result(LIMIT_S) for future in again}
    for thread in used:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_an_error_of_a_call_is_its_futures() -> None:
    with pytest.raises(ZeroDivisionError):
        CallThreads().submit(lambda: 1 / 0).result(LIMIT_S)


@pytest.mark.parametrize(("text", "bound", "expected"), [("short", 10, "short"), ("é" * 10, 11, "é" * 4 + "…")])
def test_cut(text: str, bound: int, expected: str) -> None:
    assert cut(text, bound) == expected and len(expected.encode()) <= bound


def test_a_names_bound_is_told() -> None:
    check_name("A name", "é" * 5, 10)
    with pytest.raises(CapacityError, match=r"10 bytes.*12 bytes"):
        check_name("A name", "é" * 6, 10)


def test_the_list_of_jobs_fits_into_a_message() -> None:
    num_jobs = DEFAULT.remembered_jobs + DEFAULT.jobs
    assert num_jobs * (2 * DEFAULT.listed_bytes + 2 * DEFAULT.name_bytes) < DEFAULT.message_bytes


# ---- the store ------------------------------------------------------------------------------------------------------


def test_what_cannot_fit_evicts_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit_bytes=300)
    unused, used = write(store, b"a" * 100), write(store, b"b" * 100)
    store.use("job", [used])
    with pytest.raises(CapacityError, match="full"):
        store.put(one_time(250), [b"c" * 250])
    assert store.has(unused) and store.has(used)
    store.put(one_time(150), [b"c" * 150])
    assert not store.has(unused) and store.has(used)


def test_what_has_not_come_holds_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit_bytes=300, limits=Limits(upload_step_bytes=10))

    def trickle() -> Iterator[bytes]:
        yield b"x"
        write(store, b"y" * 250)

    with pytest.raises(Exception, match="ended early"):
        store.put(one_time(300), trickle(), "slow")
    assert store.has(reference(b"y" * 250))


def test_the_unfinished_blobs_of_one_sender_leave_room_for_others(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limits=Limits(upload_share=0.0))
    with pytest.raises(CapacityError, match="Unfinished uploads of one client may hold 0 bytes"):
        store.put(one_time(100), [b"x" * 100], "one")
    store.put(one_time(100), [b"x" * 100])


def test_a_store_holds_so_many_blobs(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limits=Limits(blobs=3))
    refs = [write(store, bytes((n,))) for n in range(3)]
    store.use("job", refs[1:])
    newest = write(store, b"new")
    assert not store.has(refs[0]) and all(map(store.has, (*refs[1:], newest)))
    store.use("job", [newest])
    with pytest.raises(CapacityError, match="3 blobs"):
        write(store, b"newer")


def test_a_job_uses_so_many_blobs(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(CapacityError, match=r"2 blobs.*3 blobs"):
        store.use("job", [reference(bytes((n,))) for n in range(3)], bound=2)


def test_an_operator_can_set_every_bound() -> None:
    limits = changed(DEFAULT, ["hosts=1000", "joined_workers=8000", "idle_s=2.5"])
    assert (limits.hosts, limits.joined_workers, limits.idle_s) == (1000, 8000, 2.5)
    assert dataclasses.replace(limits, hosts=64, joined_workers=512, idle_s=60.0) == DEFAULT
    for field in dataclasses.fields(Limits):
        assert changed(DEFAULT, [f"{field.name}=1"]) != DEFAULT


@pytest.mark.parametrize(
    "asked", ["hosts", "hosts=", "hosts=0", "hosts=-1", "hosts=1.5", "idle_s=inf", "idle_s=nan", "host=3"]
)
def test_bounds_that_are_none(asked: str) -> None:
    with pytest.raises(UsageError, match="--limit"):
        changed(DEFAULT, [asked])
