"""Reads parts of the content of compressed files, in any order.

zlib begins at the beginning of a file only. So its state is kept at each megabyte of content, some 40 kB each time, and what
was read last: rows that are shuffled through a buffer lie near each other.
"""

import collections
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

# By TensorFlow's names, zlib's `wbits`.
KINDS = {"GZIP": 31, "ZLIB": 15}
_BLOCK_BYTES = 1 << 20
# What is read of a file at a time.
_CHUNK_BYTES = 16 << 10
# The most that are kept: blocks of content, and states.
_MAX_BLOCKS, _MAX_STATES = 256, 4096


class CompressedError(Exception):
    """A file is not what zlib compresses, or goes on behind it."""


class _State:
    """Where in a file zlib stands, and what it remembers."""

    def __init__(self, decompressor: Any, position: int = 0) -> None:
        self._decompressor, self._position = decompressor, position

    @property
    def has_ended(self) -> bool:
        """Whether all of the content was read."""
        return bool(self._decompressor.eof)

    @property
    def follows(self) -> bytes:
        """What was read of the file behind the compressed content."""
        found: bytes = self._decompressor.unused_data
        return found

    def copy(self) -> "_State":
        return _State(self._decompressor.copy(), self._position)

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
    state = _State(zlib.decompressobj(KINDS[kind]))
    while block := state.read(descriptor):
        yield block
    if not state.has_ended:
        raise CompressedError("its compressed content is not whole")
    if state.follows or os.pread(descriptor, 1, state._position):
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
        # By file and block, those used last at the end; a state stands at the beginning of its block.
        self._blocks = collections.OrderedDict[tuple[int, int], bytes]()
        self._states = collections.OrderedDict[tuple[int, int], _State]()
        self._turn = threading.Lock()

    def read(self, file: int, length: int, offset: int) -> bytes:
        """Returns a part of a file's content, or what there is of it.

        Args:
            file: Which file.
            length: Bytes of the part.
            offset: Where in the content it begins.

        Raises:
            OSError: The file cannot be read.
            CompressedError: It is not what zlib compresses.
        """
        first, last = offset // _BLOCK_BYTES, (offset + max(length, 1) - 1) // _BLOCK_BYTES
        parts = list[bytes]()
        # Behind a block that is not full there is nothing.
        while len(parts) <= last - first and (not parts or len(parts[-1]) == _BLOCK_BYTES):
            parts.append(self._block(file, first + len(parts)))
        begin = offset - first * _BLOCK_BYTES
        return b"".join(parts)[begin : begin + length]

    def _block(self, file: int, block: int) -> bytes:
        with self._turn:
            if (file, block) in self._blocks:
                self._blocks.move_to_end((file, block))
                return self._blocks[file, block]
            return self._read_up_to(file, block)

    def _read_up_to(self, file: int, block: int) -> bytes:
        """Returns a block, nothing behind the end; reads those before it, from the nearest state on."""
        near = max((number for of, number in self._states if of == file and number <= block), default=0)
        if near:
            self._states.move_to_end((file, near))
            state = self._states[file, near].copy()
        else:
            state = _State(zlib.decompressobj(KINDS[self._kind]))
        descriptor = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
        try:
            for number in range(near, block + 1):
                content = self._blocks[file, number] = state.read(descriptor)
                if len(self._blocks) > _MAX_BLOCKS:
                    self._blocks.popitem(last=False)
                if len(content) < _BLOCK_BYTES:
                    return content if number == block else b""
                self._states[file, number + 1] = state.copy()
                if len(self._states) > _MAX_STATES:
                    self._states.popitem(last=False)
            return content
        finally:
            os.close(descriptor)
