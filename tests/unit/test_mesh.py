"""A rank's mesh with all others, by connections over loopback and by memory that they share."""

import json
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import WorkerError
from fdt.program.layout import Combine
from fdt.worker.shared_memory import Memories
from hfdt import mesh
from hfdt.mesh import Mesh

LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def _nobody_waits_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that still exchange something would keep a test that has failed from its end."""
    monkeypatch.setattr(mesh, "_EXCHANGE_S", LIMIT_S)


@pytest.fixture(params=[False, True], ids=["connections", "shared memory"], autouse=True)
def is_shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(Meeting, "has_memory", request.param)
    return bool(request.param)


class Meeting:
    """See `fdt.worker.runtime.Rendezvous`."""

    has_memory = False

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._memories = Memories(selectors.PollSelector())

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def wait(self, key: str, limit_s: float) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.values, LIMIT_S)
            return self.values[key]

    def memory(self, key: str, num_bytes: int) -> int | None:
        with self._changed:
            memory = self._memories.of(key, num_bytes, threading.get_ident()) if self.has_memory else None
        return None if memory is None else os.dup(memory.descriptor)


def on_all(num_ranks: int, run: Callable[[Mesh, int], Any], rendezvous: Meeting | None = None) -> list[Any]:
    """Runs a function on every rank, each in a thread."""
    place = rendezvous or Meeting()

    def one(rank: int) -> Any:
        connected = Mesh(rank, num_ranks, "127.0.0.1", place)
        try:
            return run(connected, rank)
        finally:
            connected.close()

    with ThreadPoolExecutor(num_ranks) as threads:
        return [future.result(LIMIT_S) for future in [threads.submit(one, rank) for rank in range(num_ranks)]]


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_rows_come_in_the_order_of_the_ranks(num_ranks: int, is_shared: bool) -> None:
    # Of every size that is allowed, none of them alike; the largest twice, as far as one may be ahead of another.
    largest = (1 << 22) // num_ranks // 8
    counts = [[rank, 0, 7 * rank + 1, largest, largest] for rank in range(num_ranks)]

    def run(connected: Mesh, rank: int) -> list[np.ndarray]:
        assert connected.is_shared == is_shared
        assert largest <= connected.max_bytes // 8
        totals = [sum(each) for each in zip(*counts, strict=True)]
        own = [np.full([count, 2], rank, "int32") for count in counts[rank]]
        return [connected.gather(tf.constant(a), n).numpy() for a, n in zip(own, totals, strict=True)]

    for found in on_all(num_ranks, run):
        for turn, rows in enumerate(found):
            whole = np.concatenate([np.full([each[turn], 2], rank, "int32") for rank, each in enumerate(counts)])
            np.testing.assert_array_equal(rows, whole)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(
    ("combine", "numpy"), [(Combine.SUM, np.add), (Combine.MAX, np.maximum), (Combine.MIN, np.minimum)]
)
def test_tensors_are_put_together_in_the_order_of_the_ranks(combine: Combine, numpy: np.ufunc) -> None:
    random = np.random.default_rng(0)
    types = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64, tf.uint8, tf.bool]
    numbers = random.normal(size=(3, 20, 5)) * 100
    numbers[1, 3, 2] = np.nan
    # The second follows a tensor of an odd number of bytes.
    given = [
        [
            tf.constant([rank > 0] * 3),
            *(tf.cast(numbers[rank] if t.is_floating else numbers[rank] > 0, t) for t in types),
        ]
        for rank in range(3)
    ]
    found = on_all(3, lambda connected, rank: [t.numpy() for t in connected.reduce(given[rank], combine)])
    for place, whole in enumerate(found[0]):
        first, second, third = (given[rank][place].numpy() for rank in range(3))
        expected = numpy(numpy(first, second), third)
        assert whole.dtype == first.dtype and whole.tobytes() == expected.tobytes()
        assert all(other[place].tobytes() == whole.tobytes() for other in found)


def test_a_stranger_is_not_taken_for_a_rank() -> None:
    rendezvous = Meeting()

    def knock() -> None:
        place = json.loads(rendezvous.wait("mesh/0", LIMIT_S))
        address = place["address"], place["port"]
        silent = socket.create_connection(address)
        silent.close()
        with socket.create_connection(address) as stranger:
            stranger.sendall(mesh._HELLO.pack(bytes(32), 1))
            assert stranger.recv(1) == b""
        with socket.create_connection(address) as unknown:
            unknown.sendall(mesh._HELLO.pack(bytes.fromhex(place["token"]), 7))
            assert unknown.recv(1) == b""

    with ThreadPoolExecutor(2) as threads:
        knocking = threads.submit(knock)
        first = threads.submit(Mesh, 0, 2, "127.0.0.1", rendezvous)
        knocking.result(LIMIT_S)
        second = Mesh(1, 2, "127.0.0.1", rendezvous)
        meshes = first.result(LIMIT_S), second
        answers = [threads.submit(one.gather, tf.constant([rank]), 2) for rank, one in enumerate(meshes)]
        assert [answer.result(LIMIT_S).numpy().tolist() for answer in answers] == [[0, 1]] * 2
        first.result().close()
        second.close()


def test_a_rank_that_is_elsewhere_or_gone_is_named() -> None:
    def elsewhere(connected: Mesh, rank: int) -> None:
        # One wants a sum of numbers of which the other sends rows.
        if rank:
            connected.reduce([tf.constant([1.0, 2.0])], Combine.SUM)
        else:
            connected.gather(tf.constant([1.0]), 2)

    with pytest.raises(tf.errors.InternalError, match="Ranks gather other rows than were expected"):
        on_all(2, elsewhere)

    def gone(connected: Mesh, rank: int) -> None:
        if rank:
            connected.close()
        else:
            connected.gather(tf.constant([1.0]), 2)

    with pytest.raises(tf.errors.UnavailableError, match="connection to rank 1 of this job is lost"):
        on_all(2, gone)


def test_a_rank_that_is_at_another_exchange_is_named() -> None:
    rendezvous = Meeting()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(Mesh, 0, 2, "127.0.0.1", rendezvous)
        place = json.loads(rendezvous.wait("mesh/0", LIMIT_S))
        with socket.create_connection((place["address"], place["port"])) as other:
            other.sendall(mesh._HELLO.pack(bytes.fromhex(place["token"]), 1))
            other.sendall(struct.pack("<II", 2, 0))
            # The first exchange tells whether all ranks have the same memory.
            with pytest.raises(
                tf.errors.InternalError, match="Rank 1 is at exchange 2 and rank 0 at 1: their steps differ"
            ):
                first.result(LIMIT_S)


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_MEET_S", 0.05)
    with pytest.raises(WorkerError, match="no connection came to rank 0 from rank 1, 2"):
        Mesh(0, 3, "127.0.0.1", Meeting())


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_rows_go_to_the_ranks_they_are_for(num_ranks: int) -> None:
    """Of several types at once; some ranks get none from some, and messages are larger than what a connection holds."""
    random = np.random.default_rng(0)
    counts = random.integers(0, 3, (4, num_ranks, num_ranks)) * np.array([1, 10, 0, 5_000])[:, None, None]

    def sent(turn: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
        whom = np.repeat(np.arange(num_ranks), counts[turn, rank])
        names = 1_000_000 * rank + 1_000 * whom + np.arange(len(whom)) % 1_000
        return names, np.stack([names, whom], 1).astype("float32")

    def run(connected: Mesh, rank: int) -> list[Any]:
        received = []
        for turn in range(4):
            names, rows = sent(turn, rank)
            values = [tf.constant(names), tf.constant(rows)]
            (got_names, got_rows), numbers = connected.swap(values, tf.constant(counts[turn, rank], tf.int32))
            received.append((got_names.numpy(), got_rows.numpy(), numbers.numpy()))
        return received

    for rank, received in enumerate(on_all(num_ranks, run)):
        for turn, (names, rows, numbers) in enumerate(received):
            of_all = [sent(turn, other) for other in range(num_ranks)]
            mine = [np.repeat(np.arange(num_ranks), counts[turn, other]) == rank for other in range(num_ranks)]
            np.testing.assert_array_equal(
                names, np.concatenate([n[own] for (n, _), own in zip(of_all, mine, strict=True)])
            )
            np.testing.assert_array_equal(
                rows, np.concatenate([r[own] for (_, r), own in zip(of_all, mine, strict=True)])
            )
            np.testing.assert_array_equal(numbers, counts[turn, :, rank])


@pytest.mark.parametrize("counts", [[1, 1], [4, -1], [3]])
def test_counts_that_do_not_fit_the_rows_are_refused(counts: list[int]) -> None:
    def run(connected: Mesh, rank: int) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit"):
            connected.swap([tf.zeros([3, 2])], tf.constant(counts))

    on_all(2, run)


@pytest.mark.parametrize("combine", [Combine.SUM, Combine.MAX])
def test_large_tensors_are_put_together_range_by_range(combine: Combine) -> None:
    """Of sizes around that of a chunk of shared memory, none beginning where a chunk does."""
    chunk = (1 << 18) // 8
    sizes = [1, chunk - 1, chunk, chunk + 1, 3 * chunk + 7, 0, 2 * chunk]
    given = [[np.random.default_rng(9 * rank + i).normal(size=n) for i, n in enumerate(sizes)] for rank in range(3)]

    def run(connected: Mesh, rank: int) -> list[np.ndarray]:
        return [t.numpy() for t in connected.reduce([tf.constant(a) for a in given[rank]], combine)]

    numpy = np.add if combine is Combine.SUM else np.maximum
    expected = [numpy(numpy(a, b), c) for a, b, c in zip(*given, strict=True)]
    for found in on_all(3, run):
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
