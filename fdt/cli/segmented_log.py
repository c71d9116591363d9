"""Keeps the beginning and the newest part of a process's output in files of bounded size, which readers can follow.

Each file is named by the offset of its first byte in the whole output, so a reader notices gaps.
"""

import contextlib
import os
from pathlib import Path

# The size of one file, and how many of the newest files are kept besides the first.
SEGMENT_BYTES, KEPT = 4 << 20, 4
_SUFFIX = ".out"
_READ_BYTES = 1 << 20


class Writer:
    """Appends output to the files of a folder."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Begins in a folder, which must be empty."""
        self._folder, self._segment_bytes = folder, segment_bytes
        self._end = self._room = 0
        self._file = -1

    def write(self, chunk: bytes) -> None:
        """Appends a chunk; bytes that cannot be written to the disk are lost."""
        while chunk:
            if not self._room:
                self._next()
            piece, chunk = chunk[: self._room], chunk[self._room :]
            with contextlib.suppress(OSError):
                # Written at its offset: if an earlier piece could not be written, this one must not take its place.
                os.pwrite(self._file, piece, self._segment_bytes - self._room)
            self._room -= len(piece)
            self._end += len(piece)

    def _next(self) -> None:
        self.close()
        self._room = self._segment_bytes
        path = self._folder / f"{self._end:020d}{_SUFFIX}"
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        for old in _segments(self._folder)[1:-KEPT]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the newest file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Reader:
    """Reads the output in order; can be called again while it grows."""

    def __init__(self, folder: Path, tail: int | None = None) -> None:
        """Opens the log.

        Args:
            folder: The writer's folder.
            tail: How many of the last lines to begin with; None for all kept output.
        """
        self._folder, self._place = folder, 0
        if tail is not None:
            self._place = self._place_of(tail)

    def read(self) -> bytes:
        """Returns the next bytes; b"" if there are none yet."""
        segments = _segments(self._folder)
        for segment in segments:
            start = _start(segment)
            if start + _size(segment) <= self._place:
                continue
            missing = max(0, start - self._place)
            self._place += missing
            with contextlib.suppress(FileNotFoundError), open(segment, "rb") as file:
                file.seek(self._place - start)
                piece = file.read(_READ_BYTES)
                self._place += len(piece)
                left_out = f"\nfdt: {missing:,} bytes were left out here\n".encode() if missing else b""
                return left_out + piece
        return b""

    def _place_of(self, num_lines: int) -> int:
        """Returns the offset at which the last `num_lines` lines begin, or the end of the last gap if that is later."""
        end, place, seen = 0, 0, 0
        for segment in reversed(_segments(self._folder)):
            start, content = _start(segment), segment.read_bytes()
            if end and start + len(content) != end:
                break
            # The line break at the end of the output ends the last line, and begins no other.
            at = len(content) - (content.endswith(b"\n") and not end)
            while seen < num_lines and (at := content.rfind(b"\n", 0, at)) >= 0:
                seen += 1
            if seen == num_lines:
                return start + at + 1
            end = place = start
        return place


def _segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX)


def _start(segment: Path) -> int:
    return int(segment.stem)


def _size(segment: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return segment.stat().st_size
    return 0
