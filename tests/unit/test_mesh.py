"""A rank's connections to all others, over loopback."""

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fdt.errors import WorkerError
from hfdt import mesh
from hfdt.mesh import MAX_MESSAGE_BYTES, Mesh, combined

LIMIT_S = 20.0


class Meeting:
    """See `fdt.runtime.MeetingPlace`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

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


def on_all(num_ranks: int, run: Callable[[Mesh, int], Any], meeting: Meeting | None = None) -> list[Any]:
    """Runs a function on every rank, each in a thread."""
    place = meeting or Meeting()

    def one(rank: int) -> Any:
        connected = Mesh(rank, num_ranks, "127.0.0.1", place)
        try:
            return run(connected, rank)
        finally:
            connected.close()

    with ThreadPoolExecutor(num_ranks) as threads:
        return [future.result(LIMIT_S) for future in [threads.submit(one, rank) for rank in range(num_ranks)]]


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_all_get_the_same_in_the_order_of_the_ranks(num_ranks: int) -> None:
    def run(connected: Mesh, rank: int) -> list[list[bytes]]:
        # Of every size that is allowed, none of them alike; the largest twice, as far as one may be ahead of another.
        sizes = [rank, 0, 7 * rank + 1, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES]
        return [connected.exchange(bytes([rank]) * size) for size in sizes]

    found = on_all(num_ranks, run)
    assert all(each == found[0] for each in found)
    assert found[0][2] == [bytes([rank]) * (7 * rank + 1) for rank in range(num_ranks)]


def test_sums_are_the_same_bit_for_bit() -> None:
    random = np.random.default_rng(0)
    numbers = random.normal(size=(3, 100)).astype("float32")
    flags = random.random((3, 4)) > 0.5

    def run(connected: Mesh, rank: int) -> list[np.ndarray]:
        arrays = [numbers[rank].reshape(20, 5), flags[rank]]
        return combined(connected.exchange(b"".join(a.tobytes() for a in arrays)), arrays, np.maximum)

    found = on_all(3, run)
    for largest, either in found:
        assert largest.tobytes() == numbers.max(0).tobytes() and largest.shape == (20, 5)
        assert (either == flags.any(0)).all() and either.dtype == bool
    parts = [numbers[rank].tobytes() for rank in range(3)]
    (total,) = combined(parts, [numbers[0]], np.add)
    assert total.tobytes() == ((numbers[0] + numbers[1]) + numbers[2]).tobytes()


def test_a_stranger_is_not_taken_for_a_rank() -> None:
    meeting = Meeting()

    def knock() -> None:
        place = json.loads(meeting.wait("mesh/0", LIMIT_S))
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
        first = threads.submit(Mesh, 0, 2, "127.0.0.1", meeting)
        knocking.result(LIMIT_S)
        second = Mesh(1, 2, "127.0.0.1", meeting)
        answers = threads.submit(first.result(LIMIT_S).exchange, b"one"), threads.submit(second.exchange, b"two")
        assert [answer.result(LIMIT_S) for answer in answers] == [[b"one", b"two"]] * 2
        first.result().close()
        second.close()


def test_a_rank_that_is_elsewhere_or_gone_is_named() -> None:
    def elsewhere(connected: Mesh, rank: int) -> None:
        if rank:
            connected._num_exchanges += 1
        connected.exchange(b"")

    with pytest.raises(WorkerError, match=r"is at exchange .* their steps differ"):
        on_all(2, elsewhere)

    def gone(connected: Mesh, rank: int) -> None:
        if rank:
            connected.close()
        else:
            connected.exchange(b"")

    with pytest.raises(WorkerError, match="connection to rank 1 of this job is lost"):
        on_all(2, gone)


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "_MEET_S", 0.05)
    with pytest.raises(WorkerError, match="no connection came to rank 0 from rank 1, 2"):
        Mesh(0, 3, "127.0.0.1", Meeting())
