"""Finds where the records of files begin: TFRecords, lines of texts, and records of one length, compressed or not."""

import dataclasses
import functools
import mmap
import os
import struct
import tempfile
from collections.abc import Sequence

import numpy as np

from fdt.program import compressed_file

# A TFRecord is its length, a checksum of that, its bytes, and a checksum of these.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_LENGTH = struct.Struct("<Q")
# Files whose records are kept.
_MAX_KEPT = 4096
# All of a text is looked through for its lines, before the first step.
_MAX_TEXT_BYTES = 4 << 30
_CHUNK_BYTES = 16 << 20
# Compressed files are decompressed, all of them, before the first step.
_MAX_COMPRESSED_BYTES = 2 << 30
# What they hold is kept on the disk of each worker.
_MAX_CONTENT_BYTES = 8 << 30
_NEWLINE, _QUOTE = 10, 34


class NoIndexError(Exception):
    """There is no index of files: one does not consist of whole records, or there is too much to look through."""


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of some files, in order.

    Attributes:
        file: int32 [num_records], which file a record is in.
        offset: int64 [num_records], where in the file, or in what it holds compressed, it begins.
        length: int64 [num_records], its bytes; None of TFRecords that are not compressed, which have their length and checksums
            with them.
        are_lines: Whether records are lines, of which each ends with a line break or its file.
        compression: How the files are compressed, of `fdt.program.compressed_file.KINDS`, or "".
    """

    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray | None = None
    are_lines: bool = False
    compression: str = ""


@dataclasses.dataclass(frozen=True)
class TFRecords:
    """How TFRecord files hold records: 12 bytes of each are read."""

    def spans(self, descriptor: int, path: bytes, size: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns where records begin and, unless they say it themselves, how long they are, both int64 [num_records].

        Args:
            descriptor: The open file.
            path: Its path, for messages.
            size: Its size in bytes.

        Raises:
            NoIndexError: The file does not consist of whole records.
            OSError: The file cannot be read.
        """
        begin, found = 0, []
        while begin < size:
            header = os.pread(descriptor, _HEADER_BYTES, begin)
            end = begin + _HEADER_BYTES + _FOOTER_BYTES
            end += _LENGTH.unpack_from(header)[0] if len(header) == _HEADER_BYTES else 0
            if len(header) < _HEADER_BYTES or end > size:
                raise NoIndexError(f"{os.fsdecode(path)} ends within the record that begins at byte {begin:,}")
            found.append(begin)
            begin = end
        return np.array(found, "<i8"), None


@dataclasses.dataclass(frozen=True)
class Lines:
    """How a text holds lines; all of it is read. TensorFlow leaves out every carriage return."""

    def spans(self, descriptor: int, path: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where lines begin, and their lengths without their line breaks; see `TFRecords.spans`."""
        if not size:
            return np.zeros(0, "<i8"), np.zeros(0, "<i8")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as text:
            breaks = [
                np.flatnonzero(np.frombuffer(text[begin : begin + _CHUNK_BYTES], np.uint8) == _NEWLINE) + begin
                for begin in range(0, size, _CHUNK_BYTES)
            ]
            ends = np.concatenate(breaks).astype("<i8")
            last = int(ends[-1]) + 1 if len(ends) else 0
            # What follows the last line break is a line if there is anything.
            if any(text[begin : begin + _CHUNK_BYTES].strip(b"\r") for begin in range(last, size, _CHUNK_BYTES)):
                ends = np.append(ends, size)
        begins = np.concatenate([np.zeros(1, "<i8"), ends[:-1] + 1])[: len(ends)]
        return begins, ends - begins


@dataclasses.dataclass(frozen=True)
class Table(Lines):
    """How a table in a text holds lines, none of whose fields goes over several of them.

    Attributes:
        has_quotes: Whether fields may stand in quotes.
    """

    has_quotes: bool = True

    def spans(self, descriptor: int, path: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where lines begin, and their lengths without their line breaks; see `TFRecords.spans`."""
        begins, lengths = super().spans(descriptor, path, size)
        quotes = np.zeros(len(begins) + 1, np.int64)
        with open(descriptor, "rb", closefd=False) as text:
            for begin in range(0, size, _CHUNK_BYTES):
                text.seek(begin)
                # With the next byte, since a carriage return is a part of a line break, or within a field.
                more = text.read(_CHUNK_BYTES + 1)
                part = more[:_CHUNK_BYTES]
                if part.count(b"\r") != more.count(b"\r\n"):
                    raise NoIndexError(f"{os.fsdecode(path)} has carriage returns within lines")
                places = np.flatnonzero(np.frombuffer(part, np.uint8) == _QUOTE) + begin
                quotes += np.bincount(np.searchsorted(begins, places, "right"), minlength=len(quotes))
        if self.has_quotes and (quotes % 2).any():
            raise NoIndexError(f"{os.fsdecode(path)} has fields that go over several lines")
        return begins, lengths


@dataclasses.dataclass(frozen=True)
class OneLength:
    """How a file holds records of one length.

    Attributes:
        header: Bytes before the first record.
        record: Bytes of a record.
        footer: Bytes behind the last record.
    """

    header: int
    record: int
    footer: int

    def spans(self, descriptor: int, path: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where records begin, and their lengths; see `TFRecords.spans`."""
        del descriptor
        content = size - self.header - self.footer
        if content < 0 or content % self.record:
            raise NoIndexError(f"{os.fsdecode(path)} does not hold whole records of {self.record:,} bytes")
        begins = np.arange(self.header, size - self.footer, self.record, "<i8")
        return begins, np.full(len(begins), self.record, "<i8")


@dataclasses.dataclass(frozen=True)
class Compressed:
    """How a compressed file holds records; all of it is decompressed, into a file for as long as that takes.

    Attributes:
        content: How its content holds records.
        kind: How it is compressed, of `fdt.program.compressed_file.KINDS`.
    """

    content: TFRecords | Lines | OneLength
    kind: str

    def spans(self, descriptor: int, path: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where in its content records begin, and their lengths; see `TFRecords.spans`."""
        del size
        with tempfile.TemporaryFile() as content:
            try:
                for block in compressed_file.blocks(descriptor, self.kind):
                    content.write(block)
            except compressed_file.CompressedError as error:
                raise NoIndexError(f"{os.fsdecode(path)}: {error}") from None
            content.flush()
            content_bytes = content.tell()
            begins, lengths = self.content.spans(content.fileno(), path, content_bytes)
        if lengths is not None:
            return begins, lengths
        return begins + _HEADER_BYTES, np.diff(begins, append=content_bytes) - (_HEADER_BYTES + _FOOTER_BYTES)


Layout = TFRecords | Lines | OneLength | Compressed


def index(paths: Sequence[bytes], layout: Layout, skipped: int = 0) -> Records:
    """Returns the records of files.

    Args:
        paths: Their paths.
        layout: How they hold records.
        skipped: How many of each file's records are left out at its beginning.

    Raises:
        NoIndexError: A file does not consist of whole records, or there is too much to look through.
        OSError: A file cannot be read.
    """
    most = _MAX_COMPRESSED_BYTES if isinstance(layout, Compressed) else _MAX_TEXT_BYTES
    is_looked_through = isinstance(layout, Lines | Compressed)
    if is_looked_through and sum(os.stat(path).st_size for path in paths) > most:
        raise NoIndexError(f"its files have more than {most:,} bytes to look through for records")
    spans, content_bytes = list[tuple[np.ndarray, np.ndarray | None]](), 0
    for path in paths:
        begins, of_each = of_file(path, layout)
        spans.append((begins, of_each))
        if isinstance(layout, Compressed) and of_each is not None and len(begins):
            content_bytes += int(begins[-1] + of_each[-1])
        if content_bytes > _MAX_CONTENT_BYTES:
            raise NoIndexError(f"its compressed files hold more than {_MAX_CONTENT_BYTES:,} bytes")
    offsets = [offset[skipped:] for offset, _ in spans]
    files = np.repeat(np.arange(len(paths), dtype="<i4"), [len(each) for each in offsets])
    offset = np.concatenate([np.zeros(0, "<i8"), *offsets])
    if isinstance(layout, TFRecords):
        return Records(files, offset)
    lengths = np.concatenate([np.zeros(0, "<i8"), *(length[skipped:] for _, length in spans if length is not None)])
    if isinstance(layout, Compressed):
        return Records(files, offset, lengths, isinstance(layout.content, Lines), layout.kind)
    return Records(files, offset, lengths, isinstance(layout, Lines))


def of_file(path: bytes, layout: Layout) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns where the records of a file begin, and their lengths; see `index`. Kept as long as the file does not change."""
    found = os.stat(path)
    return _spans(path, layout, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=_MAX_KEPT)
def _spans(path: bytes, layout: Layout, size: int, changed_ns: int) -> tuple[np.ndarray, np.ndarray | None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return layout.spans(descriptor, path, size)
    finally:
        os.close(descriptor)
