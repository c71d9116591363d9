"""What a worker's engine may rely on, whichever store it is given: the pool's own, or that of a host that joined."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.base.config import Credentials, Timing
from fdt.base.limits import DEFAULT
from fdt.errors import ProtocolError
from fdt.pool.access import Access
from fdt.pool.services.blobs import Blobs
from fdt.transport import rpc
from fdt.transport.blob_client import BlobClient, HostStore, SharedStore
from fdt.transport.blob_store import BlobStore, WorkerStore
from fdt.transport.blobs import CHUNK_BYTES, one_time, reference
from fdt.transport.rate_limits import RateLimiter
from fdt.v1 import blobs_pb2
from tests.helpers.blobs import write

LIMIT_S = 20.0
TIMING = Timing(connect_s=LIMIT_S)


@dataclasses.dataclass
class Stores:
    """The store under test, and the one in which the pool puts what clients upload."""

    store: BlobStore
    pool: BlobStore


@pytest.fixture
def pool(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "pool")


@pytest.fixture
def client(pool: BlobStore, tmp_path: Path) -> Iterator[BlobClient]:
    """Transfers to and from the pool's store, over the real wire."""
    limiter = RateLimiter(DEFAULT, TIMING)
    serving = rpc.create_server(rpc.RequireToken(lambda *_: None), limiter, DEFAULT, TIMING)
    servicer = Blobs(pool, DEFAULT, TIMING, Access(None))
    blobs = rpc.service(blobs_pb2.DESCRIPTOR.services_by_name["Blobs"], servicer, limiter, {"Put", "Get"})
    serving.add_generic_rpc_handlers((blobs,))
    address = rpc.listen(serving, f"unix:{tmp_path}/blobs.sock")
    serving.start()
    with rpc.open_channel(address, Credentials(), TIMING) as channel:
        yield BlobClient(channel, TIMING)
    serving.stop(0).wait(LIMIT_S)


@pytest.fixture(params=["own", "joined"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    pool = request.getfixturevalue("pool")
    if request.param == "own":
        (tmp_path / "worker").mkdir()
        return Stores(WorkerStore(pool.directory, tmp_path / "worker"), pool)
    return Stores(HostStore(tmp_path / "host", request.getfixturevalue("client")), pool)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1])
def test_what_a_client_uploaded_can_be_opened(stores: Stores, size: int) -> None:
    content = os.urandom(size)
    ref = write(stores.pool, content)
    assert stores.store.open(ref).tobytes() == content
    assert stores.store.open(ref).tobytes() == content


@pytest.mark.parametrize("size", [0, 1, 3 * CHUNK_BYTES + 1])
def test_what_is_written_reaches_the_pool(stores: Stores, size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    ref = one_time(size)
    stores.store.add(ref, [content])
    assert ref.size_bytes == size
    if isinstance(stores.store, WorkerStore):
        assert not stores.pool.has(ref)
        stores.pool.adopt(ref, tmp_path / "worker")
        assert not list((tmp_path / "worker").iterdir())
    assert stores.pool.open(ref).tobytes() == content
    assert stores.store.open(ref).tobytes() == content


@pytest.mark.parametrize("by", ["wire", "files"])
def test_a_piece_of_a_stream_serves_once(stores: Stores, client: BlobClient, by: str) -> None:
    pieces = [os.urandom(CHUNK_BYTES + 1), b"", os.urandom(7)]
    ref = one_time(sum(map(len, pieces)))
    sender = client if by == "wire" else SharedStore(stores.pool.directory)
    assert sender.send(ref, pieces) == ref.size_bytes
    stores.pool.use("job", [ref])
    stores.pool.drop(ref)
    assert stores.store.open(ref).tobytes() == b"".join(pieces)
    stores.pool.release("job", [ref])
    for store in (stores.pool, stores.store):
        store.drop(ref)
    with pytest.raises(ProtocolError, match="upload it first"):
        stores.store.open(ref)


def test_nobody_puts_another_blob_under_a_name_that_serves_once(stores: Stores, client: BlobClient) -> None:
    ref = one_time(5)
    client.send(ref, [b"first"])
    with pytest.raises(ProtocolError, match="another blob under this name"):
        client.send(ref, [b"other"])
    assert stores.pool.open(ref).tobytes() == b"first"
    assert not [path.name for path in stores.pool.directory.iterdir() if path.name.startswith("part-")]


def test_an_opened_blob_is_private(stores: Stores) -> None:
    ref = write(stores.pool, b"\0" * 4)
    stores.store.open(ref)[:] = 1
    assert stores.store.open(ref).tobytes() == b"\0" * 4 == stores.pool.open(ref).tobytes()


def test_an_opened_blob_outlives_its_drop(stores: Stores) -> None:
    ref = one_time(5)
    stores.pool.add(ref, [b"state"])
    opened = stores.store.open(ref)
    stores.store.drop(ref)
    assert opened.tobytes() == b"state"


def test_nobody_has_it(stores: Stores) -> None:
    with pytest.raises(ProtocolError, match="upload it first"):
        stores.store.open(reference(b"missing"))


@pytest.mark.parametrize("digest", [b"", b"../../../etc/passwd"])
def test_no_name_of_a_blob(stores: Stores, digest: bytes) -> None:
    with pytest.raises(ProtocolError, match="32 bytes"):
        stores.store.open(blobs_pb2.BlobRef(digest=digest))


# ---- a host's store -------------------------------------------------------------------------------------------------


class CountingClient:
    """Notes what is fetched; the first fetch waits until it may go on."""

    def __init__(self, client: BlobClient) -> None:
        self._client = client
        self.fetched: list[bytes] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def chunks(self, ref: blobs_pb2.BlobRef) -> Iterator[memoryview]:
        self.fetched.append(ref.digest)
        self.begun.set()
        assert self.go_on.wait(LIMIT_S)
        yield from self._client.chunks(ref)


def test_the_ranks_of_a_host_fetch_a_blob_once(pool: BlobStore, client: BlobClient, tmp_path: Path) -> None:
    ref = write(pool, os.urandom(2 * CHUNK_BYTES))
    counting = CountingClient(client)
    opened: list[bytes] = []

    def rank() -> None:
        # As in a process of its own: the store's directory is the only thing they share.
        store = HostStore(tmp_path / "host", counting)  # type: ignore[arg-type]
        opened.append(store.open(ref).tobytes())

    ranks = [threading.Thread(target=rank) for _ in range(3)]
    for thread in ranks:
        thread.start()
    assert counting.begun.wait(LIMIT_S)
    counting.go_on.set()
    for thread in ranks:
        thread.join(LIMIT_S)
    assert opened == [pool.open(ref).tobytes()] * 3
    assert counting.fetched == [ref.digest]


def test_a_blob_that_changes_on_its_way_is_refused(pool: BlobStore, client: BlobClient, tmp_path: Path) -> None:
    store = HostStore(tmp_path / "host", client)
    ref = write(pool, b"array")
    pool.path(ref).write_bytes(b"other")
    with pytest.raises(ProtocolError, match="content"):
        store.open(ref)
    assert not list((tmp_path / "host").iterdir())


def test_a_fetch_that_fails_lets_the_next_one_in(pool: BlobStore, client: BlobClient, tmp_path: Path) -> None:
    store = HostStore(tmp_path / "host", client)
    with pytest.raises(ProtocolError):
        store.open(reference(b"later"))
    ref = write(pool, b"later")
    assert store.open(ref).tobytes() == b"later"


def test_what_is_written_does_not_stay_on_the_host(pool: BlobStore, client: BlobClient, tmp_path: Path) -> None:
    ref = write(HostStore(tmp_path / "host", client), b"state")
    assert pool.has(ref) and not list((tmp_path / "host").iterdir())
