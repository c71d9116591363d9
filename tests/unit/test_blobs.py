"""The store: whole blobs or none, the limit, what may go and what may not."""

import errno
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from fdt.errors import CapacityError, ProtocolError
from fdt.transport import blobs, wire
from fdt.transport.blob_store import BlobStore, WorkerStore
from fdt.transport.blobs import one_time, reference
from fdt.v1 import blobs_pb2
from tests.helpers.blobs import write


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(store: BlobStore) -> set[str]:
    return {path.name for path in store.directory.iterdir()}


def test_reference_is_sha256_and_size() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert reference(array) == blobs_pb2.BlobRef(digest=hashlib.sha256(array.tobytes()).digest(), size_bytes=24)
    assert reference(b"").size_bytes == 0
    assert reference(np.empty((0, 3))) == reference(b"")


@pytest.mark.parametrize("size", [0, 1, blobs.CHUNK_BYTES, blobs.CHUNK_BYTES * 2 + 1])
def test_round_trip(store: BlobStore, size: int) -> None:
    content = os.urandom(size)
    ref = reference(content)
    assert not store.has(ref)
    store.put(ref, blobs.chunked(blobs.flat(content)))
    assert store.has(ref) and store.open(ref).tobytes() == content
    store.put(ref, blobs.chunked(blobs.flat(content)))
    assert files(store) == {ref.digest.hex()}


def test_open_is_private(store: BlobStore) -> None:
    ref = write(store, b"\0" * 4)
    store.open(ref)[:] = 1
    assert store.open(ref).tobytes() == b"\0" * 4


@pytest.mark.parametrize("content", [b"shor", b"longer", b"other", b""])
def test_wrong_content_leaves_nothing(store: BlobStore, content: bytes) -> None:
    ref = reference(b"short")
    with pytest.raises(ProtocolError):
        store.put(ref, [content])
    assert not files(store) and not store.has(ref)


def test_broken_stream_leaves_nothing(store: BlobStore) -> None:
    def chunks():
        yield b"sho"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.put(reference(b"short"), chunks())
    assert not files(store)


@pytest.mark.parametrize("digest", [b"", b"../../../etc/passwd", b"\0" * 31])
def test_bad_digest(store: BlobStore, digest: bytes) -> None:
    with pytest.raises(ProtocolError, match="32 bytes"):
        store.has(blobs_pb2.BlobRef(digest=digest))


def test_missing_blob(store: BlobStore) -> None:
    with pytest.raises(ProtocolError, match="upload it first"):
        store.open(reference(b"missing"))


def age(store: BlobStore, ref: blobs_pb2.BlobRef, used_s: float) -> None:
    os.utime(store.path(ref), (used_s, used_s))


def test_limit_drops_the_least_recently_used_that_nobody_uses(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit_bytes=300)
    old, used, young = (write(store, bytes([n]) * 100) for n in range(3))
    for second, ref in enumerate((used, old, young)):
        age(store, ref, 1000.0 + second)
    store.use("job", [used])
    write(store, b"x" * 100)
    assert not store.has(old) and store.path(used).exists() and store.path(young).exists()
    with pytest.raises(CapacityError, match="full"):
        write(store, b"y" * 250)
    store.release("job")
    write(store, b"y" * 250)
    assert len(files(store)) == 1


def test_limit_counts_what_is_being_written(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit_bytes=300)

    def chunks():
        yield b"y"
        with pytest.raises(CapacityError):
            write(store, b"x" * 200)
        yield b"y" * 199

    store.put(reference(b"y" * 200), chunks())
    write(store, b"x" * 100)


def test_fresh_blobs_have_a_grace(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, limit_bytes=150, grace_s=1000.0)
    ref = write(store, b"x" * 100)
    with pytest.raises(CapacityError):
        write(store, b"y" * 100)
    age(store, ref, 1000.0)
    assert store.has(ref), "whoever asks may be about to use it"
    with pytest.raises(CapacityError):
        write(store, b"y" * 100)
    age(store, ref, 1000.0)
    write(store, b"y" * 100)


def test_full_disk(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match="disk"):
        write(store, b"x")
    assert not files(store)


def test_disk_that_is_too_small_is_seen_before_writing(store: BlobStore) -> None:
    with pytest.raises(CapacityError):
        store.put(blobs_pb2.BlobRef(digest=b"\0" * 32, size_bytes=1 << 60), [])


def test_drop_spares_what_is_used(store: BlobStore) -> None:
    ref = one_time(1)
    store.add(ref, [b"x"])
    store.use("job", [ref])
    store.drop(ref)
    assert store.has(ref)
    store.release("job")
    store.drop(ref)
    assert not store.has(ref)


def test_drop_spares_what_is_named_by_its_content(store: BlobStore) -> None:
    """Others may have sent it: whoever has the array knows its name."""
    ref = write(store, b"x")
    store.drop(ref)
    assert store.has(ref)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1 << 20])
def test_chunks_are_protobuf(size: int) -> None:
    data = os.urandom(size)
    raw = blobs.encode_data(memoryview(data), 2)
    assert blobs_pb2.PutChunk.FromString(raw).data == data
    assert blobs.decode_data(raw, blobs_pb2.PutChunk, 2) == data
    both = blobs_pb2.PutChunk(blob=reference(data), data=data).SerializeToString()
    assert blobs.decode_data(both, blobs_pb2.PutChunk, 2) == data
    assert wire.only_field(both, 2) is None


@pytest.mark.parametrize("raw", [b"\x12", b"\x12\xff", b"\x12" + b"\xff" * 12, b"\x12\x05abc", b"\x07"])
def test_malformed_chunks(raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="PutChunk"):
        blobs.decode_data(raw, blobs_pb2.PutChunk, 2)


# ---- what a worker has written --------------------------------------------------------------------------------------


def test_a_worker_writes_into_its_own_folder(store: BlobStore, tmp_path: Path) -> None:
    ref = one_time(5)
    WorkerStore(store.directory, tmp_path / "own").add(ref, [b"state"])
    assert not files(store)
    store.adopt(ref, tmp_path / "own")
    assert store.open(ref).tobytes() == b"state" and not list((tmp_path / "own").iterdir())


@pytest.mark.parametrize("trick", ["symbolic link", "hard link", "folder", "pipe", "shorter", "missing", "not new"])
def test_only_a_plain_file_of_the_workers_own_is_taken_over(store: BlobStore, tmp_path: Path, trick: str) -> None:
    ref, secret = one_time(6), tmp_path / "secret"
    secret.write_text("secret")
    own = tmp_path / "own"
    own.mkdir()
    path = own / store.path(ref).name
    before: set[str] = set()
    if trick == "symbolic link":
        path.symlink_to(secret)
    elif trick == "hard link":
        path.hardlink_to(secret)
    elif trick == "folder":
        path.mkdir()
    elif trick == "pipe":
        os.mkfifo(path)
    elif trick == "shorter":
        path.write_text("short")
    elif trick == "not new":
        path.write_text("secret")
        store.add(ref, [b"others"])
        before = files(store)
    with pytest.raises(ProtocolError, match="worker's blob"):
        store.adopt(ref, own)
    assert files(store) == before and secret.read_text() == "secret"
    if before:
        assert store.open(ref).tobytes() == b"others"


def test_a_worker_cannot_promise_what_a_blob_holds(store: BlobStore, tmp_path: Path) -> None:
    """Others would be given it for their own array."""
    ref = reference(b"array")
    own = tmp_path / "own"
    own.mkdir()
    (own / store.path(ref).name).write_bytes(b"other")
    with pytest.raises(ProtocolError, match="must have a one-time name"):
        store.adopt(ref, own)
    assert not store.has(ref)


def test_a_blob_that_is_cut_short_while_it_is_read_harms_nobody(store: BlobStore) -> None:
    ref = write(store, os.urandom(3 * blobs.CHUNK_BYTES))
    reading = store.chunks(ref)
    next(reading)
    os.truncate(store.path(ref), 0)
    with pytest.raises(ProtocolError, match="cut short"):
        list(reading)
