"""Finds where the records of TFRecord files begin: 12 bytes of each are read, its length and that length's checksum."""

import dataclasses
import functools
import os
import struct
from collections.abc import Sequence

import numpy as np

# A record is its length, a checksum of that, its bytes, and a checksum of these.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_LENGTH = struct.Struct("<Q")
# Files whose records are kept.
_MAX_KEPT = 4096


class BrokenRecordsError(Exception):
    """A file does not consist of whole records."""


@dataclasses.dataclass(frozen=True)
class Records:
    """The records of some files, in order.

    Attributes:
        file: int32 [num_records], which file a record is in.
        offset: int64 [num_records], where in the file it begins.
    """

    file: np.ndarray
    offset: np.ndarray


def index(paths: Sequence[bytes]) -> Records:
    """Returns the records of files.

    Raises:
        BrokenRecordsError: A file ends within a record.
        OSError: A file cannot be read.
    """
    offsets = [of_file(path) for path in paths]
    files = np.repeat(np.arange(len(paths), dtype="<i4"), [len(each) for each in offsets])
    return Records(files, np.concatenate([np.zeros(0, "<i8"), *offsets]))


def of_file(path: bytes) -> np.ndarray:
    """Returns where the records of a file begin, int64 [num_records]; see `index`. Kept as long as the file does not change."""
    found = os.stat(path)
    return _offsets(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=_MAX_KEPT)
def _offsets(path: bytes, size: int, changed_ns: int) -> np.ndarray:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        begin, found = 0, []
        while begin < size:
            header = os.pread(descriptor, _HEADER_BYTES, begin)
            end = begin + _HEADER_BYTES + _FOOTER_BYTES
            end += _LENGTH.unpack_from(header)[0] if len(header) == _HEADER_BYTES else 0
            if len(header) < _HEADER_BYTES or end > size:
                raise BrokenRecordsError(f"{os.fsdecode(path)} ends within the record that begins at byte {begin:,}")
            found.append(begin)
            begin = end
        return np.array(found, "<i8")
    finally:
        os.close(descriptor)
