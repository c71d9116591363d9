"""Finds where the records of files begin, of TFRecord files, of texts by lines, and of files of records of one length."""

import dataclasses
import functools
import mmap
import os
import struct
from collections.abc import Sequence

import numpy as np

# A TFRecord is its length, a checksum of that, its bytes, and a checksum of these.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_LENGTH = struct.Struct("<Q")
# Files whose records are kept.
_MAX_KEPT = 4096
# All of a text is looked through for its lines, before the first step.
_MAX_TEXT_BYTES = 4 << 30
_CHUNK_BYTES = 16 << 20
_NEWLINE = 10


class NoIndexError(Exception):
    """There is no index of files: one does not consist of whole records, or there is too much text to look through."""


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of some files, in order.

    Attributes:
        file: int32 [num_records], which file a record is in.
        offset: int64 [num_records], where in the file it begins.
        length: int64 [num_records], its bytes; None of TFRecords, which have their length and checksums with them.
        are_lines: Whether records are lines, of which each ends with a line break or its file.
    """

    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray | None = None
    are_lines: bool = False


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


Layout = TFRecords | Lines | OneLength


def index(paths: Sequence[bytes], layout: Layout, skipped: int = 0) -> Records:
    """Returns the records of files.

    Args:
        paths: Their paths.
        layout: How they hold records.
        skipped: How many of each file's records are left out at its beginning.

    Raises:
        NoIndexError: A file does not consist of whole records, or there is too much text.
        OSError: A file cannot be read.
    """
    if isinstance(layout, Lines) and sum(os.stat(path).st_size for path in paths) > _MAX_TEXT_BYTES:
        raise NoIndexError(f"its texts have more than {_MAX_TEXT_BYTES:,} bytes to look through for lines")
    spans = [of_file(path, layout) for path in paths]
    offsets = [offset[skipped:] for offset, _ in spans]
    files = np.repeat(np.arange(len(paths), dtype="<i4"), [len(each) for each in offsets])
    offset = np.concatenate([np.zeros(0, "<i8"), *offsets])
    if isinstance(layout, TFRecords):
        return Records(files, offset)
    lengths = [length[skipped:] for _, length in spans if length is not None]
    return Records(files, offset, np.concatenate([np.zeros(0, "<i8"), *lengths]), isinstance(layout, Lines))


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
