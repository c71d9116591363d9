"""Writes a pool's audit log: callers' actions and refused calls, one JSON object a line.

Rotation bounds the size of the file. So that a caller cannot displace the other lines by repeating an action, each kind of
event has at most `_MAX_LINES` lines a minute for each person, and for all unknown callers together. A further line has the
number of lines that were left out.
"""

import collections
import datetime
import json
import logging
import logging.handlers
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdt.base import log, user_folder
from fdt.base.limits import cut
from fdt.errors import UsageError

# The size at which the file is rotated, and the number of older files that are kept.
_MAX_BYTES, _NUM_OLDER = 8 << 20, 4
_MAX_LINES, _PERIOD_S = 30, 60.0
# The most bytes of a text in a line: callers send paths and reasons of any length.
_MAX_TEXT = 1024


class _File(logging.handlers.RotatingFileHandler):
    """A log file that only its owner may read, before and after its rotation."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:
        # The disk may be full, which must not end the pool.
        log.notice(f"the audit log cannot be written: look at {self.baseFilename}. Left out: {record.getMessage()}")


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    complaint = user_folder.file_complaint(descriptor, Path(path))
    if complaint is not None:
        os.close(descriptor)
        raise OSError(complaint)
    return descriptor


class AuditLog:
    """An open audit log; its methods may be called from any thread."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time, max_bytes: int = _MAX_BYTES) -> None:
        """Opens the file, or makes it.

        Args:
            path: The file; None to write nothing.
            clock: Returns the time in seconds since the epoch.
            max_bytes: The size at which the file is rotated.

        Raises:
            UsageError: The file cannot be written, or others may open it.
        """
        self._clock = clock
        self._lock = threading.Lock()
        # When the present minute began, and the number of lines since then, written or left out, by event and person.
        self._since_s = clock()
        self._num: collections.Counter[tuple[str, str]] = collections.Counter()
        self._file: _File | None = None
        if path is not None:
            try:
                self._file = _File(path, maxBytes=max_bytes, backupCount=_NUM_OLDER, encoding="ascii")
            except OSError as error:
                raise UsageError(
                    f"cannot write the audit log: {error}. Expected a file that this user alone may open: --audit-log FILE. "
                    f"Received: {path}"
                ) from error

    def write(self, event: str, who: str, **fields: str | int) -> None:
        """Writes a line.

        Args:
            event: What happened.
            who: The person; "" for an unknown caller.
            fields: The line's other fields, which must hold no secrets; long texts are cut.
        """
        with self._lock:
            if self._file is None:
                return
            if abs(self._clock() - self._since_s) >= _PERIOD_S:
                self._begin_period()
            self._num[event, who] += 1
            if self._num[event, who] <= _MAX_LINES:
                self._emit(event, who, fields)

    def close(self) -> None:
        """Writes how many lines were left out, and closes the file."""
        with self._lock:
            if self._file is not None:
                self._begin_period()
                self._file.close()
                self._file = None

    def _begin_period(self) -> None:
        for (event, who), number in self._num.items():
            if number > _MAX_LINES:
                self._emit(event, who, {"left_out": number - _MAX_LINES})
        self._num.clear()
        self._since_s = self._clock()

    def _emit(self, event: str, who: str, fields: dict[str, str | int]) -> None:
        assert self._file is not None
        at = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).isoformat(timespec="milliseconds")
        told = {name: cut(value, _MAX_TEXT) if isinstance(value, str) else value for name, value in fields.items()}
        # JSON escapes all control characters but this one. It escapes non-ASCII characters too, so that none of them can
        # change the direction in which a terminal shows the line.
        line = json.dumps({"time": at, "event": event, "who": who, **told}).replace("\x7f", "\\u007f")
        self._file.handle(logging.makeLogRecord({"msg": "%s", "args": (line,)}))
