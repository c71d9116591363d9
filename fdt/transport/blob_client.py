"""Transfers blobs to and from a pool's store: over its port, through its files, or through the store of a joined host."""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from fdt.base.config import Timing
from fdt.errors import CapacityError, ProtocolError
from fdt.transport import rpc, statuses
from fdt.v1 import blobs_pb2

if TYPE_CHECKING:
    # Only for types: the script may set variables that NumPy reads at its import, so we must not import it first.
    import numpy as np

from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import ONE_TIME_BYTES, Buffer, chunked, decode_data, describe, encode_data, flat

# Parallel streams when several blobs are sent.
_NUM_STREAMS = 2
# What is fetched stays in memory up to this size.
_IN_MEMORY_BYTES = 64 << 20


class SharedStore:
    """A client's transfers if the pool is its child process: the client itself writes and maps the store's files.

    The methods are those of `BlobClient`.

    Attributes:
        directory: The store's.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self._store = directory, BlobStore(directory)

    def find_missing(self, refs: Sequence[blobs_pb2.BlobRef]) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs that the store does not hold."""
        return [ref for ref in refs if not self._store.has(ref)]

    def upload(
        self, blobs: Sequence[tuple[blobs_pb2.BlobRef, Buffer]], sent: Callable[[int], None] = lambda _: None
    ) -> int:
        """Writes the blobs that the store does not hold; returns the bytes of content written.

        Args:
            blobs: References (from `reference`) and contents.
            sent: Called with the number of bytes of each written piece.
        """
        missing = [(ref, buffer) for ref, buffer in blobs if not self._store.has(ref)]
        for ref, buffer in missing:
            self._store.add(ref, _counted(chunked(flat(buffer)), sent))
        return sum(ref.size_bytes for ref, _ in missing)

    def send(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> int:
        """Writes a blob with a name from `one_time`; returns the bytes of content written."""
        self._store.add(ref, pieces)
        return ref.size_bytes

    def download(self, ref: blobs_pb2.BlobRef) -> Buffer:
        """Returns a blob's content, mapped into memory without a copy: uint8 [size_bytes]."""
        return self._store.open(ref)


class BlobClient:
    """A client's transfers to and from the store of a pool."""

    _PUT, _GET = "/fdt.v1.Blobs/Put", "/fdt.v1.Blobs/Get"

    def __init__(self, channel: grpc.Channel, timing: Timing) -> None:
        """Makes transfers over a channel made by `fdt.transport.rpc.connect`."""
        self._timing = timing
        self._find_missing = channel.unary_unary(
            "/fdt.v1.Blobs/FindMissing",
            request_serializer=blobs_pb2.FindMissingRequest.SerializeToString,
            response_deserializer=blobs_pb2.FindMissingReply.FromString,
        )
        # Chunks are raw: a message object would copy the data once more.
        self._put = channel.stream_unary(self._PUT, response_deserializer=blobs_pb2.PutReply.FromString)
        self._get = channel.unary_stream(self._GET, request_serializer=blobs_pb2.BlobRef.SerializeToString)

    def find_missing(self, refs: Sequence[blobs_pb2.BlobRef]) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs that the pool does not hold."""
        with statuses.translated():
            request = blobs_pb2.FindMissingRequest(blobs=refs)
            return list(self._find_missing(request, timeout=self._timing.call_s).missing)

    def upload(
        self, blobs: Sequence[tuple[blobs_pb2.BlobRef, Buffer]], sent: Callable[[int], None] = lambda _: None
    ) -> int:
        """Sends the blobs that the pool does not hold.

        Args:
            blobs: References (from `reference`) and contents.
            sent: Called with the number of bytes of each sent piece, from several threads.

        Returns:
            Bytes of content sent.

        Raises:
            CapacityError: The pool's store is full.
            PoolError: The pool could not be reached, or refused the blob.
        """
        wanted = {ref.digest for ref in self.find_missing([ref for ref, _ in blobs])} if blobs else set()
        todo = {ref.digest: (ref, flat(buffer)) for ref, buffer in blobs if ref.digest in wanted}

        def one(blob: tuple[blobs_pb2.BlobRef, memoryview]) -> int:
            return self._upload_one(blob[0], _counted(chunked(blob[1]), sent))

        if len(todo) < 2:
            return sum(map(one, todo.values()))
        with concurrent.futures.ThreadPoolExecutor(_NUM_STREAMS, thread_name_prefix="fdt-upload") as threads:
            return sum(threads.map(one, todo.values()))

    def send(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> int:
        """Sends a blob that the pool does not hold.

        Args:
            ref: Its name, from `one_time`.
            pieces: Its content, in order.

        Returns:
            Bytes of content sent.

        Raises:
            CapacityError: The pool's store is full.
            PoolError: The pool could not be reached, or refused the blob.
        """
        return self._upload_one(ref, (flat(piece) for piece in pieces))

    def chunks(self, ref: blobs_pb2.BlobRef) -> Iterator[memoryview]:
        """Fetches a blob piece by piece; the caller checks the whole content."""
        with statuses.translated():
            call = self._get(ref)
            with rpc.Watch(call.cancel, self._timing.chunk_s) as watch:
                for raw in watch.each(call):
                    yield decode_data(raw, blobs_pb2.GetChunk, 1)

    def download(self, ref: blobs_pb2.BlobRef) -> Buffer:
        """Fetches a blob, and checks its size and, if it is named by its SHA-256, its content.

        Raises:
            ProtocolError: The pool does not hold the blob, or the content does not fit the reference.
            PoolError: The pool could not be reached.
        """
        kept, digest, is_named = _Kept(ref.size_bytes), hashlib.sha256(), len(ref.digest) != ONE_TIME_BYTES
        for data in self.chunks(ref):
            kept.add(data)
            if is_named:
                digest.update(data)
        named = not is_named or digest.digest() == ref.digest
        if kept.num_bytes != ref.size_bytes or not named:
            raise ProtocolError(f"A blob came back changed, with {kept.num_bytes:,} bytes. Expected: {describe(ref)}")
        return kept.content()

    def _upload_one(self, ref: blobs_pb2.BlobRef, views: Iterable[memoryview]) -> int:
        with statuses.translated(), rpc.Watch(lambda: call.cancel(), self._timing.chunk_s) as watch:
            call = self._put.future(watch.each(_put_chunks(ref, views)))
            call.result()
        return ref.size_bytes


class WorkerBlobClient(BlobClient):
    """The transfers of a worker on a joined host: it may fetch the blobs of its job, and send one-time blobs."""

    _PUT, _GET = "/fdt.v1.Workers/PutBlob", "/fdt.v1.Workers/GetBlob"


class HostStore(BlobStore):
    """The store of a joined host, shared by its processes.

    A missing blob is fetched from the pool once for all processes; new blobs are sent to the pool.
    """

    def __init__(self, directory: Path, pool: BlobClient, grace_s: float = 0.0) -> None:
        """Opens the store.

        Args:
            directory: The host's directory of blobs.
            pool: Transfers to and from the pool's store.
            grace_s: Seconds for which a blob is kept after a request for it or its transfer.
        """
        super().__init__(directory, grace_s=grace_s)
        self._pool = pool

    def open(self, ref: blobs_pb2.BlobRef) -> "np.ndarray":
        """Maps a blob into memory, after fetching it if this host lacks it.

        Returns:
            uint8 [size_bytes], a private map: writes to it stay in this process.

        Raises:
            ProtocolError: The pool does not hold the blob.
            CapacityError: This host's disk is full.
            PoolUnreachableError: The transfer stalled.
        """
        if not self.has(ref):
            with self._alone():
                # Another process may have fetched it while this one waited.
                if not self.has(ref):
                    self.put(ref, self._pool.chunks(ref))
        return super().open(ref)

    def add(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> None:
        """Sends a blob to the pool; keeps no copy here."""
        self._pool.send(ref, pieces)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks out the host's other processes while this one fetches.

        The wait needs no limit of its own: the lock's holder makes progress or gives up (`Timing.chunk_s`), and the kernel
        frees the lock when its process ends.
        """
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _Kept:
    """The bytes of a blob that is being fetched: in memory if they are few, otherwise in an unnamed, memory-mapped file.

    So a client that fetches a model does not have it twice in memory, from a pool of its own or from another.
    """

    def __init__(self, size_bytes: int) -> None:
        self.num_bytes = 0
        # It lives until it is mapped.
        self._file = tempfile.TemporaryFile() if size_bytes > _IN_MEMORY_BYTES else None  # noqa: SIM115
        self._memory = bytearray(0 if self._file is not None else size_bytes)

    def add(self, data: memoryview) -> None:
        """Adds a piece."""
        if self._file is None:
            self._memory[self.num_bytes : self.num_bytes + len(data)] = data
        else:
            try:
                self._file.write(data)
            except OSError as error:
                self._file.close()
                raise CapacityError(
                    f"What the pool sends does not fit into {tempfile.gettempdir()}: {error}. Set TMPDIR to a folder with "
                    "more room."
                ) from error
        self.num_bytes += len(data)

    def content(self) -> Buffer:
        """Returns what came."""
        if self._file is None:
            return self._memory
        with self._file:
            self._file.flush()
            return mmap.mmap(self._file.fileno(), self.num_bytes, access=mmap.ACCESS_COPY)


def _counted(pieces: Iterable[memoryview], sent: Callable[[int], None]) -> Iterator[memoryview]:
    for piece in pieces:
        yield piece
        sent(piece.nbytes)


def _put_chunks(ref: blobs_pb2.BlobRef, views: Iterable[memoryview]) -> Iterator[bytes]:
    yield blobs_pb2.PutChunk(blob=ref).SerializeToString()
    for view in views:
        for chunk in chunked(view):
            yield encode_data(chunk, 2)
