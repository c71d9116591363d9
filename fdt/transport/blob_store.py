"""Stores a pool's blobs (arrays, programs and states) as files, each under its name."""

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdt.base.limits import OWN_STORE, Limits
from fdt.errors import CapacityError, ProtocolError
from fdt.v1 import blobs_pb2

if TYPE_CHECKING:
    # Only for types: the script may set variables that NumPy reads at its import, so we must not import it first.
    import numpy as np

from fdt.transport.blobs import CHUNK_BYTES, INLINE_BYTES, ONE_TIME_BYTES, Buffer, chunked, describe, flat, one_time


class BlobStore:
    """A directory of blobs, one file each, which several processes may use at once.

    The directory is the only shared state: a blob that one process has written is there for all.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int | None = None,
        grace_s: float = 0.0,
        limits: Limits = OWN_STORE,
    ) -> None:
        """Opens the store.

        Args:
            directory: The directory; made if missing.
            limit_bytes: The most bytes of all blobs; None for the disk's free space.
            grace_s: Seconds for which a blob is kept after a request for it or its upload, so that its job has time to call
                `use`.
            limits: Bounds on the number of blobs, and on the disk space of uploads.
        """
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._grace_s = grace_s
        self._limits = limits
        self._lock = threading.Lock()
        # The sender and the allocated bytes of each blob that is being written, by the name of its temporary file.
        self._growing: dict[str, tuple[str, int]] = {}
        self._users: dict[str, dict[str, blobs_pb2.BlobRef]] = {}
        # The CRC-32 of the content of each sealed blob, by file name.
        self._seals: dict[str, int] = {}
        # The persons who have sent the content of each blob, by file name.
        self._owners: dict[str, set[str]] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, ref: blobs_pb2.BlobRef) -> Path:
        """Returns the path of a blob, whether it exists or not.

        Raises:
            ProtocolError: The reference is invalid.
        """
        if len(ref.digest) == ONE_TIME_BYTES:
            return self.directory / f"once-{ref.digest.hex()}"
        if len(ref.digest) != hashlib.sha256().digest_size:
            raise ProtocolError(
                f"A blob's name is the 32 bytes of its SHA-256, or 16 random ones. Received: {len(ref.digest)} bytes"
            )
        return self.directory / ref.digest.hex()

    def is_lasting(self, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether the name is a digest of the content, so that a client cannot replace the content."""
        return len(ref.digest) == hashlib.sha256().digest_size

    def has(self, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether the blob is here; if it is, marks it as just used, since the caller probably needs it."""
        path = self.path(ref)
        try:
            # By a descriptor: a worker's sandbox forbids changing a file's times by its name.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            found = os.fstat(descriptor).st_size == ref.size_bytes
            if found:
                os.utime(descriptor)
        finally:
            os.close(descriptor)
        return found

    def put(self, ref: blobs_pb2.BlobRef, chunks: Iterable[Buffer], sender: str = "", owner: str = "") -> None:
        """Writes a blob; it appears complete or not at all.

        Args:
            ref: The blob's name and size.
            chunks: Its content.
            sender: The client that sends it; the disk space of one sender's unfinished blobs is bounded. "" for no bound.
            owner: The person who has sent the content; "" for the operator.

        Raises:
            ProtocolError: The content does not fit the reference.
            CapacityError: The store or its disk is full.
        """
        self._write(ref, chunks, hashlib.sha256() if len(ref.digest) != ONE_TIME_BYTES else None, sender, owner)

    def owns(self, owner: str, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether a person, or a worker of one of their jobs, has sent the content of a blob.

        The store keeps one copy of equal contents, so a blob may have several owners. Knowing a blob's name does not make a
        person its owner, since it does not show that they know the content.
        """
        with self._lock:
            return owner in self._owners.get(self.path(ref).name, ())

    def payload(self, buffer: Buffer) -> blobs_pb2.Payload:
        """Returns the payload of a message: small content itself, larger content as a one-time blob."""
        return self.payload_of(flat(buffer).nbytes, [buffer])

    def payload_of(self, size_bytes: int, pieces: Iterable[Buffer]) -> blobs_pb2.Payload:
        """Returns the payload of a message, as `payload` does, for content that is made piece by piece."""
        if size_bytes <= INLINE_BYTES:
            return blobs_pb2.Payload(inline=b"".join(bytes(flat(piece)) for piece in pieces))
        ref = one_time(size_bytes)
        self.add(ref, pieces)
        return blobs_pb2.Payload(blob=ref)

    def add(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> None:
        """Writes a blob that this process has made, without checking its content."""
        self._write(ref, (chunk for piece in pieces for chunk in chunked(flat(piece))), None)

    def open(self, ref: blobs_pb2.BlobRef) -> "np.ndarray":
        """Maps a blob into memory.

        Returns:
            uint8 [size_bytes], a private map: writes to it stay in this process.

        Raises:
            ProtocolError: The blob is not here.
        """
        import numpy as np

        if not self.has(ref):
            raise not_here(ref)
        if not ref.size_bytes:
            return np.empty(0, np.uint8)
        return np.memmap(self.path(ref), np.uint8, "c")

    def chunks(self, ref: blobs_pb2.BlobRef) -> Iterator[memoryview]:
        """Reads a blob piece by piece. The file is not mapped, since reading a map of a truncated file crashes the process.

        Raises:
            ProtocolError: The blob is not here, is cut short, or has changed since it was sealed.
        """
        if not self.has(ref):
            raise not_here(ref)
        sealed, found = self._seals.get(self.path(ref).name), 0
        with open(self.path(ref), "rb", buffering=0) as file:
            for start in range(0, ref.size_bytes, CHUNK_BYTES):
                wanted = min(CHUNK_BYTES, ref.size_bytes - start)
                chunk = file.read(wanted)
                if len(chunk) != wanted:
                    raise ProtocolError(f"A blob was cut short while it was read. Expected: {describe(ref)}")
                found = zlib.crc32(chunk, found) if sealed is not None else 0
                yield memoryview(chunk)
        if sealed is not None and found != sealed:
            raise ProtocolError(
                f"A blob has changed since it was written: its disk may be failing. Expected: {describe(ref)}"
            )

    def seal(self, ref: blobs_pb2.BlobRef) -> None:
        """Records the checksum of a one-time blob; from now on `chunks` and `is_whole` check the content."""
        found = 0
        for chunk in self.chunks(ref):
            found = zlib.crc32(chunk, found)
        self._seals[self.path(ref).name] = found

    def is_whole(self, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether the blob is here and, if it was sealed, unchanged."""
        if self.path(ref).name not in self._seals:
            return self.has(ref)
        try:
            for _ in self.chunks(ref):
                pass
        except ProtocolError as error:
            print(f"fdt: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def adopt(self, ref: blobs_pb2.BlobRef, folder: Path, owner: str = "") -> None:
        """Moves a blob from a worker's own folder into the store.

        Args:
            ref: The blob's name and size.
            folder: The worker's folder.
            owner: The person whose job the worker serves; "" for the operator.

        Raises:
            ProtocolError: The name is not a one-time name; or the file is not a regular file of this user with a single link,
                differs in size from the reference, or is already in the store.
        """
        name = self.path(ref).name
        if len(ref.digest) != ONE_TIME_BYTES:
            # A worker must not write a blob under a content digest: other jobs rely on such names.
            raise ProtocolError(f"A worker's blob must have a one-time name. Received: {describe(ref)}")
        try:
            status = os.lstat(folder / name)
            expected = (stat.S_IFREG, 1, os.geteuid(), ref.size_bytes)
            found = (stat.S_IFMT(status.st_mode), status.st_nlink, status.st_uid, status.st_size)
            if found != expected or os.path.lexists(self.path(ref)):
                raise ProtocolError(
                    "A worker's blob must be a regular file with one link, as long as its reference says, and not in the store "
                    f"yet. Expected (type, links, owner, bytes): {expected}. Received: {found}"
                )
            os.rename(folder / name, self.path(ref))
            self._own_by(ref, owner)
        except OSError as error:
            raise ProtocolError(f"A worker's blob is not in its folder: {describe(ref)}. ({error.strerror})") from error

    def use(self, user: str, refs: Iterable[blobs_pb2.BlobRef], bound: int | None = None) -> None:
        """Keeps blobs until the user releases them.

        Raises:
            CapacityError: The user then has more than `bound` blobs.
        """
        with self._lock:
            used = self._users.setdefault(user, {})
            used.update((self.path(ref).name, ref) for ref in refs)
            if bound is not None and len(used) > bound:
                raise CapacityError(f"A job may use {bound:,} blobs at once. Received: {len(used):,} blobs")

    def uses(self, user: str, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether a user keeps a blob."""
        with self._lock:
            return self.path(ref).name in self._users.get(user, {})

    def release(self, user: str, refs: Iterable[blobs_pb2.BlobRef] | None = None) -> list[blobs_pb2.BlobRef]:
        """Releases a user's claim on these blobs, or on all its blobs; returns the blobs that it had claimed."""
        with self._lock:
            used = self._users.get(user, {})
            names = list(used) if refs is None else [self.path(ref).name for ref in refs]
            released = [used.pop(name) for name in names if name in used]
            if not used:
                self._users.pop(user, None)
        return released

    def drop(self, ref: blobs_pb2.BlobRef) -> None:
        """Deletes a one-time blob, unless it has a user.

        A blob that is named by its content stays until its space is needed: other clients with the same content may use it.
        """
        with self._lock:
            if not self.is_lasting(ref) and self.path(ref).name not in self._used():
                self._delete(self.path(ref))

    def _own_by(self, ref: blobs_pb2.BlobRef, owner: str) -> None:
        if owner:
            with self._lock:
                self._owners.setdefault(self.path(ref).name, set()).add(owner)

    def _delete(self, path: Path) -> None:
        """Deletes a blob, and what is known of it; the caller holds the lock."""
        path.unlink(missing_ok=True)
        self._seals.pop(path.name, None)
        self._owners.pop(path.name, None)

    def _write(
        self, ref: blobs_pb2.BlobRef, chunks: Iterable[Buffer], digest: Any, sender: str = "", owner: str = ""
    ) -> None:
        target = self.path(ref)
        temporary = self.directory / f"part-{uuid.uuid4().hex}"
        try:
            with self._lock:
                # The announced size alone neither evicts other blobs nor reserves space.
                tight = bool(self._room_for(ref.size_bytes, sender, temporary.name))
            _fill(temporary, ref, chunks, digest, functools.partial(self._grow, temporary.name, sender, tight))
            if digest is None and sender:
                # A one-time name does not identify the content: an existing file is another blob, which a job may be reading.
                os.link(temporary, target)
            else:
                os.replace(temporary, target)
            self._own_by(ref, owner)
        except FileExistsError as error:
            raise ProtocolError(f"The pool holds another blob under this name. Received: {describe(ref)}") from error
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
                self._growing.pop(temporary.name, None)

    def _grow(self, writer: str, sender: str, tight: bool, descriptor: int, allocated: int, size_bytes: int) -> int:
        """Allocates space for the next bytes of a blob that is being written; returns the allocated bytes in all."""
        more = min(self._limits.upload_step_bytes, size_bytes - allocated)
        with self._lock:
            if tight or not self._has_room(more, sender):
                for path in self._room_for(more, sender, writer):
                    self._delete(path)
            _allocate(descriptor, allocated, more)
            self._growing[writer] = sender, allocated + more
        return allocated + more

    def _has_room(self, size_bytes: int, sender: str) -> bool:
        """Whether there is certainly room without evicting blobs; does not read the directory."""
        free_bytes, held = self._free_bytes(), self._held_bytes(sender)
        share = self._limits.upload_share if sender else 1.0
        return self._limit_bytes is None and held + size_bytes <= share * (free_bytes + held)

    def _room_for(self, size_bytes: int, sender: str, writer: str) -> list[Path]:
        """Returns the blobs to evict to make room for `size_bytes` more.

        Raises:
            CapacityError: There is no room even if all unused blobs are evicted.
        """
        files, kept = self._files(), self._used()
        newest_s = time.time() - self._grace_s
        leaving = [file for file in sorted(files, key=lambda file: file[2]) if file[0].name not in kept]
        leaving = [file for file in leaving if file[2] <= newest_s]
        excess = self._excess_bytes(files, size_bytes)
        surplus = len(files) + len(self._growing.keys() - {writer}) - self._limits.blobs
        self._check_share(sum(size for _, size, _ in leaving), size_bytes, sender)
        gone = []
        for path, size, _ in leaving:
            if excess <= 0 and surplus < 0:
                break
            gone.append(path)
            excess, surplus = excess - size, surplus - 1
        if excess > 0:
            raise CapacityError(
                f"The pool's store is full: {size_bytes:,} bytes more do not fit beside the arrays in use "
                f"({excess:,} too many). Wait for other jobs to end, or give the pool more room. "
                f"Received: store_limit_bytes={self._limit_bytes} kept_disk_bytes={self._limits.kept_disk_bytes}"
            )
        if surplus >= 0:
            raise CapacityError(
                f"The pool's store holds {self._limits.blobs:,} blobs, and all are in use. Try again later."
            )
        return gone

    def _check_share(self, leaving_bytes: int, size_bytes: int, sender: str) -> None:
        if not sender:
            return
        held = self._held_bytes(sender)
        bound = int(self._limits.upload_share * (self._free_bytes() + leaving_bytes + held))
        if held + size_bytes > bound:
            raise CapacityError(
                f"Unfinished uploads of one client may hold {bound:,} bytes of the pool's disk now. Received: "
                f"{held + size_bytes:,} bytes"
            )

    def _held_bytes(self, sender: str) -> int:
        return sum(held for name, held in self._growing.values() if name == sender)

    def _free_bytes(self) -> int:
        usage = shutil.disk_usage(self.directory)
        return usage.free - min(self._limits.kept_disk_bytes, usage.total // 20)

    def _excess_bytes(self, files: list[tuple[Path, int, float]], size_bytes: int) -> int:
        excess = size_bytes - self._free_bytes()
        if self._limit_bytes is not None:
            kept = sum(size for _, size, _ in files) + sum(size for _, size in self._growing.values())
            excess = max(excess, size_bytes + kept - self._limit_bytes)
        return excess

    def _files(self) -> list[tuple[Path, int, float]]:
        """Returns the path, size and time of last use of every complete blob."""
        files = []
        for path in self.directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith("part-"):
                    status = path.stat()
                    files.append((path, status.st_size, status.st_mtime))
        return files

    def _used(self) -> set[str]:
        return set().union(*self._users.values())


class WorkerStore(BlobStore):
    """The pool's store for a worker on the pool's machine: it reads the store, and writes blobs into its own folder, from
    which the pool takes them (`BlobStore.adopt`).
    """

    def __init__(self, directory: Path, folder: Path) -> None:
        """Opens the store.

        Args:
            directory: The pool's directory of blobs.
            folder: The worker's own folder.
        """
        super().__init__(directory)
        self._own = BlobStore(folder)

    def add(self, ref: blobs_pb2.BlobRef, pieces: Iterable[Buffer]) -> None:
        """Writes a blob into the worker's own folder, without checking its content."""
        self._own.add(ref, pieces)


def not_here(ref: blobs_pb2.BlobRef) -> ProtocolError:
    """Returns the error for a blob that the pool does not hold.

    Callers get the same error for another person's blob, so that they do not learn that the pool holds it.
    """
    return ProtocolError(f"The pool does not hold this blob: upload it first. Received: {describe(ref)}")


def _fill(
    path: Path, ref: blobs_pb2.BlobRef, chunks: Iterable[Buffer], digest: Any, grow: Callable[[int, int, int], int]
) -> None:
    received = allocated = 0
    with open(path, "xb", buffering=0) as file:
        for chunk in chunks:
            received += len(chunk)
            if received > ref.size_bytes:
                raise ProtocolError(f"A blob is longer than its reference says. Expected: {describe(ref)}")
            while received > allocated:
                allocated = grow(file.fileno(), allocated, ref.size_bytes)
            if digest is not None:
                digest.update(chunk)
            _write_all(file.fileno(), chunk)
    if received != ref.size_bytes:
        raise ProtocolError(f"A blob ended early: {received:,} bytes came. Expected: {describe(ref)}")
    if digest is not None and digest.digest() != ref.digest:
        raise ProtocolError(f"A blob's content is not what its name says. Expected: {describe(ref)}")


def _allocate(descriptor: int, start: int, size_bytes: int) -> None:
    # Allocation fails at once if the disk is full, and makes the later writes many times as fast as those to a growing file.
    try:
        os.posix_fallocate(descriptor, start, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _write_all(descriptor: int, chunk: Buffer) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
