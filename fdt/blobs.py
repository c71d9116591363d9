"""Bulk data by content: the store in a pool's directory, and a client's transfers to and from it.

A blob is named by its SHA-256 and its size, so the same array is sent once, and the processes of one host share the
store's files by mapping them into memory.
"""

import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from fdt import rpc, wire
from fdt.config import Timing
from fdt.errors import CapacityError, ProtocolError
from protos import blobs_pb2

if TYPE_CHECKING:
    # The script may set what NumPy reads when it is imported; until then nothing of ours imports it.
    import numpy as np

# Anything that `memoryview` takes and that is C-contiguous: bytes, arrays, maps.
Buffer = Any

# Where the store is in a pool's directory.
STORE = "blobs"
CHUNK_BYTES = 1 << 20
# Length of the name of a blob that serves once; others have that of a SHA-256.
_ONE_TIME_BYTES = 16
# Streams at once when several blobs are sent.
_NUM_STREAMS = 2


def flat(buffer: Buffer) -> memoryview:
    """Returns the bytes of a C-contiguous buffer without copying them."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def reference(buffer: Buffer) -> blobs_pb2.BlobRef:
    """Returns the name of a blob: the SHA-256 of its bytes and their number."""
    view = flat(buffer)
    return blobs_pb2.BlobRef(digest=hashlib.sha256(view).digest(), size_bytes=view.nbytes)


def one_time(size_bytes: int) -> blobs_pb2.BlobRef:
    """Returns a name for a blob that serves once: it says nothing of the content, and nobody looks for it again."""
    return blobs_pb2.BlobRef(digest=os.urandom(_ONE_TIME_BYTES), size_bytes=size_bytes)


def chunked(view: memoryview) -> Iterator[memoryview]:
    """Yields slices of at most `CHUNK_BYTES`; none for an empty view."""
    for start in range(0, view.nbytes, CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


class BlobStore:
    """Blobs as files in one directory, which several processes may use at once.

    The directory is the only state: what one process has written, the others have.
    """

    def __init__(self, directory: Path, limit_bytes: int | None = None, grace_s: float = 0.0) -> None:
        """Opens the store.

        Args:
            directory: Where the files are; made if missing.
            limit_bytes: The most that blobs may take; None for what the disk gives.
            grace_s: How long a blob that was just asked for or sent is kept, until its job says that it uses it.
        """
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._reserved: dict[str, int] = {}
        self._users: dict[str, set[str]] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, ref: blobs_pb2.BlobRef) -> Path:
        """Returns where the blob is, or would be.

        Raises:
            ProtocolError: The reference is not one.
        """
        if len(ref.digest) == _ONE_TIME_BYTES:
            return self.directory / f"once-{ref.digest.hex()}"
        if len(ref.digest) != hashlib.sha256().digest_size:
            raise ProtocolError(
                f"A blob's name is the 32 bytes of its SHA-256, or 16 random ones. Received: {len(ref.digest)} bytes"
            )
        return self.directory / ref.digest.hex()

    def has(self, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether the blob is here; if it is, whoever asks is taken to want it."""
        path = self.path(ref)
        try:
            found = path.stat().st_size == ref.size_bytes
            if found:
                os.utime(path)
        except FileNotFoundError:
            return False
        return found

    def put(self, ref: blobs_pb2.BlobRef, chunks: Iterable[Buffer]) -> None:
        """Writes a blob; it appears whole or not at all.

        Raises:
            ProtocolError: The chunks are not what the reference names.
            CapacityError: The store or its disk is full.
        """
        self._write(ref, chunks, hashlib.sha256() if len(ref.digest) != _ONE_TIME_BYTES else None)

    def write(self, buffer: Buffer) -> blobs_pb2.BlobRef:
        """Writes a blob and returns its name."""
        ref = reference(buffer)
        if not self.has(ref):
            self.add(ref, [buffer])
        return ref

    def add(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> None:
        """Writes a blob of this process's own, which needs no check."""
        self._write(ref, (chunk for piece in pieces for chunk in chunked(flat(piece))), None)

    def open(self, ref: blobs_pb2.BlobRef) -> "np.ndarray":
        """Maps a blob into memory.

        Returns:
            uint8 [size_bytes], a private map: what is written to it stays in this process.

        Raises:
            ProtocolError: The blob is not here.
        """
        import numpy as np

        if not self.has(ref):
            raise ProtocolError(f"The pool does not hold this blob: upload it first. Received: {describe(ref)}")
        if not ref.size_bytes:
            return np.empty(0, np.uint8)
        return np.memmap(self.path(ref), np.uint8, "c")

    def use(self, user: str, refs: Iterable[blobs_pb2.BlobRef]) -> None:
        """Keeps blobs from being dropped until `release(user)`."""
        with self._lock:
            self._users.setdefault(user, set()).update(self.path(ref).name for ref in refs)

    def release(self, user: str, refs: Iterable[blobs_pb2.BlobRef] | None = None) -> None:
        """Ends what `use` began, for these blobs or for all."""
        with self._lock:
            if refs is None:
                self._users.pop(user, None)
            else:
                self._users.get(user, set()).difference_update(self.path(ref).name for ref in refs)

    def drop(self, ref: blobs_pb2.BlobRef) -> None:
        """Deletes a blob, unless somebody uses it."""
        with self._lock:
            if self.path(ref).name not in self._used():
                self.path(ref).unlink(missing_ok=True)

    def _write(self, ref: blobs_pb2.BlobRef, chunks: Iterable[Buffer], digest: Any) -> None:
        target = self.path(ref)
        temporary = self.directory / f"part-{uuid.uuid4().hex}"
        try:
            self._make_room(temporary.name, ref.size_bytes)
            _fill(temporary, ref, chunks, digest)
            os.replace(temporary, target)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CapacityError(
                f"The disk of the pool's store is full: no room for {ref.size_bytes:,} bytes more. Free some, or let "
                f"TMPDIR name a larger disk. Received: directory={self.directory}"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
            with self._lock:
                self._reserved.pop(temporary.name, None)

    def _make_room(self, writer: str, size_bytes: int) -> None:
        with self._lock:
            files = self._files()
            excess = self._excess_bytes(files, size_bytes)
            kept = self._used()
            newest_s = time.time() - self._grace_s
            for path, size, used_s in sorted(files, key=lambda file: file[2]):
                if excess <= 0:
                    break
                if path.name not in kept and used_s <= newest_s:
                    path.unlink(missing_ok=True)
                    excess -= size
            if excess > 0:
                raise CapacityError(
                    f"The pool's store is full: {size_bytes:,} bytes more do not fit beside the arrays in use "
                    f"({excess:,} too many). Wait for other jobs to end, or give the pool more room. "
                    f"Received: store_limit_bytes={self._limit_bytes}"
                )
            self._reserved[writer] = size_bytes

    def _excess_bytes(self, files: list[tuple[Path, int, float]], size_bytes: int) -> int:
        promised = sum(self._reserved.values()) + size_bytes
        excess = promised - shutil.disk_usage(self.directory).free
        if self._limit_bytes is not None:
            excess = max(excess, promised + sum(size for _, size, _ in files) - self._limit_bytes)
        return excess

    def _files(self) -> list[tuple[Path, int, float]]:
        """Returns path, bytes and time of last use of every finished blob."""
        files = []
        for path in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith("part-"):
                    status = path.stat()
                    files.append((path, status.st_size, status.st_mtime))
        return files

    def _used(self) -> set[str]:
        return set().union(*self._users.values())


def describe(ref: blobs_pb2.BlobRef) -> str:
    """Returns a short name for messages."""
    return f"blob={ref.digest.hex()[:12]}… ({ref.size_bytes:,} bytes)"


def _fill(path: Path, ref: blobs_pb2.BlobRef, chunks: Iterable[Buffer], digest: Any) -> None:
    received = 0
    with open(path, "xb", buffering=0) as file:
        _allocate(file.fileno(), ref.size_bytes)
        for chunk in chunks:
            received += len(chunk)
            if received > ref.size_bytes:
                raise ProtocolError(f"A blob is longer than it says. Expected: {describe(ref)}")
            if digest is not None:
                digest.update(chunk)
            _write_all(file.fileno(), chunk)
    if received != ref.size_bytes:
        raise ProtocolError(f"A blob ended early: {received:,} bytes came. Expected: {describe(ref)}")
    if digest is not None and digest.digest() != ref.digest:
        raise ProtocolError(f"A blob's content is not what its name says. Expected: {describe(ref)}")


def _allocate(descriptor: int, size_bytes: int) -> None:
    # Says at once whether the disk has room; and the kernel then writes many times as fast as into a growing file.
    if size_bytes:
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise


def _write_all(descriptor: int, chunk: Buffer) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


class SharedStore:
    """A client's transfers when the pool is its own child: it writes and maps the files of the store itself."""

    def __init__(self, directory: Path) -> None:
        self._store = BlobStore(directory)

    def upload(self, blobs: Sequence[tuple[blobs_pb2.BlobRef, Buffer]]) -> int:
        """Like `BlobClient.upload`."""
        missing = [(ref, buffer) for ref, buffer in blobs if not self._store.has(ref)]
        for ref, buffer in missing:
            self._store.add(ref, [buffer])
        return sum(ref.size_bytes for ref, _ in missing)

    def send(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> int:
        """Like `BlobClient.send`."""
        self._store.add(ref, pieces)
        return ref.size_bytes

    def download(self, ref: blobs_pb2.BlobRef) -> Buffer:
        """Like `BlobClient.download`; what it returns is mapped, not copied."""
        return self._store.open(ref)


class BlobClient:
    """A client's transfers to and from the store of a pool."""

    def __init__(self, channel: grpc.Channel, timing: Timing) -> None:
        """Uses a channel made by `fdt.rpc.connect`."""
        self._timing = timing
        self._find_missing = channel.unary_unary(
            "/fdt.v1.Blobs/FindMissing",
            request_serializer=blobs_pb2.FindMissingRequest.SerializeToString,
            response_deserializer=blobs_pb2.FindMissingReply.FromString,
        )
        # Chunks are raw: a message object would copy the data once more.
        self._put = channel.stream_unary("/fdt.v1.Blobs/Put", response_deserializer=blobs_pb2.PutReply.FromString)
        self._get = channel.unary_stream("/fdt.v1.Blobs/Get", request_serializer=blobs_pb2.BlobRef.SerializeToString)

    def find_missing(self, refs: Sequence[blobs_pb2.BlobRef]) -> list[blobs_pb2.BlobRef]:
        """Returns those that the pool does not hold."""
        with rpc.translated():
            request = blobs_pb2.FindMissingRequest(blobs=refs)
            return list(self._find_missing(request, timeout=self._timing.call_s).missing)

    def upload(self, blobs: Sequence[tuple[blobs_pb2.BlobRef, Buffer]]) -> int:
        """Sends what the pool does not hold.

        Args:
            blobs: Names (see `reference`) and contents.

        Returns:
            Bytes of content sent.

        Raises:
            CapacityError: The pool's store is full.
            PoolError: The pool could not be reached, or would not have it.
        """
        wanted = {ref.digest for ref in self.find_missing([ref for ref, _ in blobs])} if blobs else set()
        todo = {ref.digest: (ref, flat(buffer)) for ref, buffer in blobs if ref.digest in wanted}
        if len(todo) < 2:
            return sum(self._upload_one(ref, [view]) for ref, view in todo.values())
        with concurrent.futures.ThreadPoolExecutor(_NUM_STREAMS, thread_name_prefix="fdt-upload") as threads:
            return sum(threads.map(lambda blob: self._upload_one(blob[0], [blob[1]]), todo.values()))

    def send(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> int:
        """Sends a blob that the pool does not hold.

        Args:
            ref: From `one_time`.
            pieces: Its content, one piece after the other.

        Returns:
            Bytes of content sent.

        Raises:
            CapacityError: The pool's store is full.
            PoolError: The pool could not be reached, or would not have it.
        """
        return self._upload_one(ref, (flat(piece) for piece in pieces))

    def chunks(self, ref: blobs_pb2.BlobRef) -> Iterator[memoryview]:
        """Fetches a blob piece by piece; whoever takes the pieces checks what they add up to."""
        with rpc.translated():
            call = self._get(ref)
            with rpc.Watch(call.cancel, self._timing.chunk_s) as watch:
                for raw in watch.each(call):
                    yield decode_data(raw, blobs_pb2.GetChunk, 1)

    def download(self, ref: blobs_pb2.BlobRef) -> Buffer:
        """Fetches a blob and checks that it is what its name says."""
        content = bytearray(ref.size_bytes)
        position = 0
        for data in self.chunks(ref):
            content[position : position + len(data)] = data
            position += len(data)
        if position != ref.size_bytes or hashlib.sha256(content).digest() != ref.digest:
            raise ProtocolError(f"A blob came back changed, with {position:,} bytes. Expected: {describe(ref)}")
        return content

    def _upload_one(self, ref: blobs_pb2.BlobRef, views: Iterable[memoryview]) -> int:
        with rpc.translated(), rpc.Watch(lambda: call.cancel(), self._timing.chunk_s) as watch:
            call = self._put.future(watch.each(_put_chunks(ref, views)))
            call.result()
        return ref.size_bytes


class HostStore(BlobStore):
    """The store of a host that joined a pool: what it lacks it fetches from the pool, once for all its processes; what
    is written goes to the pool.
    """

    def __init__(self, directory: Path, pool: BlobClient, grace_s: float = 0.0) -> None:
        """Opens the store.

        Args:
            directory: Of the host.
            pool: Transfers to and from the pool's store.
            grace_s: See `BlobStore`.
        """
        super().__init__(directory, grace_s=grace_s)
        self._pool = pool

    def open(self, ref: blobs_pb2.BlobRef) -> "np.ndarray":
        """Like `BlobStore.open`; waits until the blob is here.

        Raises:
            ProtocolError: The pool does not hold the blob.
            CapacityError: This host's disk is full.
            PoolUnreachableError: The transfer stood still.
        """
        if not self.has(ref):
            with self._alone():
                # Another process may have fetched it while this one waited.
                if not self.has(ref):
                    self.put(ref, self._pool.chunks(ref))
        return super().open(ref)

    def write(self, buffer: Buffer) -> blobs_pb2.BlobRef:
        """Sends a blob to the pool and returns its name; nothing of it stays here."""
        ref = reference(buffer)
        self._pool.upload([(ref, buffer)])
        return ref

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps the host's other processes from fetching meanwhile.

        The wait has no limit of its own: whoever holds the lock makes progress or gives up (`Timing.chunk_s`), and the
        kernel frees it when the process ends.
        """
        with open(self.directory.with_suffix(".lock"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _put_chunks(ref: blobs_pb2.BlobRef, views: Iterable[memoryview]) -> Iterator[bytes]:
    yield blobs_pb2.PutChunk(blob=ref).SerializeToString()
    for view in views:
        for chunk in chunked(view):
            yield encode_data(chunk, 2)


def encode_data(data: memoryview, field: int) -> bytes:
    """Returns a message whose only field is `data`, as protobuf would, with a single copy."""
    return b"".join((bytes((field << 3 | 2,)), wire.varint(len(data)), data))


def decode_data(raw: bytes, message: Any, field: int) -> memoryview:
    """Returns the field `data` of a chunk, without a copy where it is the only field."""
    data = wire.only_field(raw, field)
    if data is not None:
        return data
    return memoryview(wire.decode(message, raw).data)
