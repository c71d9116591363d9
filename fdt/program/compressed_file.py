"""Reads parts of the content of compressed files, in any order.

zlib begins at the beginning of a file only. So each file is decompressed once, as far as is asked for, into a temporary file,
from which parts are read.
"""

import collections
import functools
import os
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

# By TensorFlow's names, zlib's `wbits`.
KINDS = {"GZIP": 31, "ZLIB": 15}
_BLOCK_BYTES = 1 << 20
# What is read of a file at a time.
_CHUNK_BYTES = 16 << 10


class CompressedError(Exception):
    """A file is not what zlib compresses, or goes on behind it."""


class NoSpaceError(Exception):
    """The content of compressed files cannot be kept."""


class _Decompressor:
    """Reads the content of a file from its beginning on."""

    def __init__(self, kind: str) -> None:
        self._decompressor, self._position = zlib.decompressobj(KINDS[kind]), 0

    @property
    def has_ended(self) -> bool:
        """Whether all of the content was read."""
        return bool(self._decompressor.eof)

    def ends_at(self, descriptor: int) -> bool:
        """Whether nothing follows, in the file, what was read of it."""
        return not (self._decompressor.unused_data or os.pread(descriptor, 1, self._position))

    def read(self, descriptor: int) -> bytes:
        """Returns the next block of content; one that is not full ends the file, or was all that there is.

        Raises:
            CompressedError: The file is not what zlib compresses.
        """
        parts, wanted = list[bytes](), _BLOCK_BYTES
        while wanted and not self.has_ended:
            given = self._decompressor.unconsumed_tail
            if not given:
                given = os.pread(descriptor, _CHUNK_BYTES, self._position)
                self._position += len(given)
            try:
                part = self._decompressor.decompress(given, wanted)
            except zlib.error as error:
                raise CompressedError(str(error)) from None
            if not (given or part):
                break
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)


def blocks(descriptor: int, kind: str) -> Iterator[bytes]:
    """Yields the content of an open file, from its beginning to its end.

    Args:
        descriptor: The file.
        kind: How it is compressed, of `KINDS`.

    Raises:
        CompressedError: It is compressed otherwise, or is not whole.
    """
    content = _Decompressor(kind)
    while block := content.read(descriptor):
        yield block
    if not content.has_ended:
        raise CompressedError("its compressed content is not whole")
    if not content.ends_at(descriptor):
        raise CompressedError("something follows its compressed content")


class CompressedFiles:
    """The contents of some files. May be used by several threads."""

    def __init__(self, paths: Sequence[bytes], kind: str) -> None:
        """
        Args:
            paths: The files.
            kind: How they are compressed, of `KINDS`.
        """
        self._paths, self._kind = paths, kind
        # Of each file: where its blocks lie in the temporary file, and what decompresses the next one; None at its end.
        self._places = collections.defaultdict[int, list[int]](list)
        self._next = dict[int, _Decompressor | None]()
        self._lengths = dict[int, int]()
        self._seen = dict[int, tuple[int, ...]]()
        self._turn = threading.Lock()

    @functools.cached_property
    def _kept(self) -> Any:
        # With a name, so that bounds on a worker's files count it.
        return tempfile.NamedTemporaryFile()

    def read(self, file: int, length: int, offset: int) -> bytes:
        """Returns a part of a file's content, or what there is of it.

        Args:
            file: Which file.
            length: Bytes of the part.
            offset: Where in the content it begins.

        Raises:
            OSError: The file cannot be read.
            CompressedError: It is not what zlib compresses.
            NoSpaceError: Its content cannot be kept.
        """
        end = offset + max(length, 0)
        with self._turn:
            self._forget_if_changed(file)
            self._decompress(file, -(-end // _BLOCK_BYTES))
            end = min(end, self._lengths.get(file, 0))
            places = self._places[file]
        parts = list[bytes]()
        while offset < end:
            block, begin = divmod(offset, _BLOCK_BYTES)
            part = os.pread(self._kept.fileno(), min(end - offset, _BLOCK_BYTES - begin), places[block] + begin)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _forget_if_changed(self, file: int) -> None:
        """What a file holds is read anew after it was changed, as from files that are not compressed."""
        now = os.stat(self._paths[file])
        seen = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
        if self._seen.get(file) != seen:
            self._seen[file] = seen
            for known in (self._places, self._next, self._lengths):
                known.pop(file, None)

    def _decompress(self, file: int, num_blocks: int) -> None:
        """Keeps the first blocks of a file's content, or all that there are."""
        places = self._places[file]
        if len(places) >= num_blocks or self._next.setdefault(file, _Decompressor(self._kind)) is None:
            return
        descriptor = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(places) < num_blocks and (content := self._next[file]) is not None:
                # After an error there is no more of the file.
                self._next[file] = None
                block = content.read(descriptor)
                places.append(self._keep(block))
                self._lengths[file] = self._lengths.get(file, 0) + len(block)
                if len(block) == _BLOCK_BYTES:
                    self._next[file] = content
        finally:
            os.close(descriptor)

    def _keep(self, block: bytes) -> int:
        """Returns where the temporary file has a block from now on."""
        try:
            place: int = self._kept.seek(0, os.SEEK_END)
            self._kept.write(block)
            self._kept.flush()
            return place
        except OSError as error:
            raise NoSpaceError(
                f"What compressed files of the data hold is kept in {tempfile.gettempdir()} while they are trained on, which "
                f"failed: {error}. Make room there, or set TMPDIR, or decompress the files."
            ) from error
