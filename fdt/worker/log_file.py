"""Keeps what a worker prints in a file of bounded size: its beginning and its end."""

import contextlib
import fcntl
import os
from collections import deque
from pathlib import Path

# The number of ended workers' logs that are kept.
_MAX_LOGS = 200
# Bytes kept of a log's beginning, in its file, and of its end, in memory until the worker has ended.
HEAD_BYTES = 15 << 20
TAIL_BYTES = 1 << 20
# Bytes read at once, and the pipe's capacity if the system allows it: a worker that prints blocks while the pipe is full.
_READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20


class LogFolder:
    """The logs of a pool's workers.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        """Makes the folder."""
        self.path = path
        path.mkdir(mode=0o700, exist_ok=True)
        # Logs in the order in which their workers ended.
        self._ended: deque[Path] = deque()

    def of(self, worker: str) -> Path:
        """Returns a worker's log."""
        return self.path / f"{worker}.log"

    def ended(self, worker: str) -> None:
        """Records that a worker has ended; deletes the oldest logs beyond `_MAX_LOGS`.

        Raises:
            OSError: A log cannot be deleted.
        """
        self._ended.append(self.of(worker))
        while len(self._ended) > _MAX_LOGS:
            self._ended.popleft().unlink(missing_ok=True)


class Log:
    """The log of one worker: a non-blocking pipe from the worker, and a file."""

    def __init__(self, path: Path, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        """Opens the pipe.

        Args:
            path: The file, which is appended to.
            head_bytes: How many of the first bytes are written to the file as they come.
            tail_bytes: How many of the last bytes after those are kept.

        Raises:
            OSError: The file or the pipe cannot be opened.
        """
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._tail: deque[bytes] = deque()
        self._kept_bytes = self._dropped_bytes = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.reader, self.writer = os.pipe()
        except OSError:
            os.close(self._file)
            raise
        os.set_blocking(self.reader, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self) -> bool:
        """Reads the available output, at most 64 KiB; returns False once the worker has closed its end."""
        try:
            chunk = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return True
        self.write(chunk)
        return bool(chunk)

    def write(self, chunk: bytes) -> None:
        """Adds a chunk to the log."""
        head, rest = chunk[: self._head_bytes], chunk[self._head_bytes :]
        self._head_bytes -= len(head)
        self._append(head)
        if rest:
            self._tail.append(rest)
            self._kept_bytes += len(rest)
        while self._kept_bytes - len(self._tail[0] if self._tail else b"") >= self._tail_bytes:
            gone = len(self._tail.popleft())
            self._kept_bytes -= gone
            self._dropped_bytes += gone

    def close(self) -> None:
        """Reads the rest of the ended worker's output from the pipe, and writes the kept end to the file."""
        # Bounded: a process that the worker has started could write for ever.
        for _ in range(2 * _PIPE_BYTES // _READ_BYTES):
            if not self.read():
                break
        os.close(self.reader)
        if self._dropped_bytes:
            self._append(f"\nfdt: {self._dropped_bytes:,} bytes of this log were left out here\n".encode())
        for chunk in self._tail:
            self._append(chunk)
        os.close(self._file)

    def _append(self, chunk: bytes) -> None:
        # If the disk is full the log ends early, and the worker goes on.
        with contextlib.suppress(OSError):
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._file, view) :]
