"""Tells whether a file elsewhere is a file that is here: by its size, and for some files by their first and last bytes.

A data set may have millions of files, so not all are read: of all of them the sizes are compared, of at most `SAMPLED`, evenly
spread, the first and the last among them, the bytes.
"""

import hashlib
import os
import stat

SAMPLED = 256
# What is compared of a sampled file: so many bytes at its beginning, and at its end.
EDGE_BYTES = 64 << 10


def size(path: bytes | str) -> int:
    """Returns a regular file's size in bytes; -1 if there is none of this name that may be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def sampled(number: int) -> list[int]:
    """Returns which of so many files are looked into."""
    steps = max(1, min(number, SAMPLED) - 1)
    return sorted({i * (number - 1) // steps for i in range(steps + 1)})


def digest(path: bytes | str) -> bytes:
    """Returns the SHA-256 of a regular file's first and last bytes; nothing if it cannot be read."""
    try:
        # A pipe would wait for its other end.
        if size(path) < 0:
            return b""
        with open(path, "rb") as file:
            first = file.read(EDGE_BYTES)
            file.seek(max(0, os.fstat(file.fileno()).st_size - EDGE_BYTES))
            return hashlib.sha256(first + file.read(EDGE_BYTES)).digest()
    except OSError:
        return b""
