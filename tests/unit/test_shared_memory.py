"""Memory that a fork server gives to the workers that name the same key."""

import os
import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from fdt.worker.shared_memory import ID_BYTES, Memories, asked, pair

SIZE = 1 << 16


class Server:
    """Answers requests of workers that are threads of this process."""

    def __init__(self) -> None:
        self._readable = selectors.PollSelector()
        self._memories = Memories(self._readable)
        self._ends, self._end = socket.socketpair()
        self._readable.register(self._ends, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def worker(self, pid: int) -> socket.socket:
        own, theirs = pair()
        with self._lock:
            self._memories.connect(pid, own)
        return theirs

    def forget(self, pid: int) -> None:
        with self._lock:
            self._memories.forget(pid)

    def close(self) -> None:
        self._end.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._readable.select(0.02):
                if key.data is None:
                    return
                with self._lock:
                    key.data()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def test_workers_that_name_the_same_key_get_the_same_memory(server: Server) -> None:
    first, second, other = (server.worker(pid) for pid in (1, 2, 3))
    descriptors = [asked(first, "job a", SIZE), asked(second, "job a", SIZE), asked(other, "job b", SIZE)]
    assert None not in descriptors
    names = [os.pread(each, ID_BYTES, 0) for each in descriptors if each is not None]
    assert names[0] == names[1] != names[2] and any(names[0])
    os.pwrite(descriptors[0], b"said", ID_BYTES)
    assert os.pread(descriptors[1], 4, ID_BYTES) == b"said"
    assert os.pread(descriptors[2], 4, ID_BYTES) == bytes(4)
    # A worker that cut it would end the others when they read it.
    with pytest.raises(PermissionError):
        os.ftruncate(descriptors[0], 0)


def test_memory_lives_as_long_as_a_worker_that_has_it(server: Server) -> None:
    first, second = server.worker(1), server.worker(2)
    name = os.pread(asked(first, "job", SIZE), ID_BYTES, 0)
    asked(second, "job", SIZE)
    server.forget(1)
    assert os.pread(asked(second, "job", SIZE), ID_BYTES, 0) == name
    server.forget(2)
    assert os.pread(asked(server.worker(3), "job", SIZE), ID_BYTES, 0) != name
    assert asked(first, "job", SIZE) is None, "nobody is at the other end"


@pytest.mark.parametrize(
    "request_", [b"", b"no JSON", b"[]", b"{}", b'{"key": 1}', b'{"key": "k", "bytes": "x"}', b"\xff"]
)
def test_what_is_no_request_ends_the_connection_of_who_said_it(server: Server, request_: bytes) -> None:
    wrong, right = server.worker(1), server.worker(2)
    wrong.send(request_)
    wrong.settimeout(20)
    assert wrong.recv(10) == b""
    assert asked(right, "job", SIZE) is not None


def test_a_worker_gets_no_more_than_its_share(server: Server) -> None:
    worker = server.worker(1)
    assert asked(worker, "large", 1 << 40) is None
    assert asked(worker, "small", 1) is None
    assert asked(worker, "job", SIZE) is not None
    assert asked(worker, "job", 2 * SIZE) is None, "other workers have it with another size"
    given = [asked(worker, f"job {number}", SIZE) for number in range(20)]
    assert 0 < given.count(None) < 20
