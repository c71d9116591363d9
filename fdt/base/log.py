"""Logs what a server does, by Python's `logging`: lines for a person, lines with times and levels, or JSON.

What a person asked for is printed; what happens to a server by itself comes through here, on standard error.
"""

import contextlib
import dataclasses
import datetime
import json
import logging
import sys
import traceback
from collections.abc import Collection
from typing import Any

from fdt.base.printable import printable, printable_lines

# What whoever runs a server has to know at its start: more than information, and nothing is wrong.
NOTICE = 25
logging.addLevelName(NOTICE, "NOTICE")
_LOG = logging.getLogger("fdt")


class _StandardError(logging.Handler):
    """Writes to what is standard error at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        # Who reads it may be gone, a terminal or the other end of a pipe: a pool serves on without.
        with contextlib.suppress(OSError, ValueError):
            print(self.format(record), file=sys.stderr, flush=True)


class _Json(logging.Formatter):
    """An object a line: time (UTC), level, logger, message, and the fields of what happened."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        about = {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        return json.dumps(about | vars(record).get("fields", {}), default=str)


def configure(level: str | None = None, as_json: bool = False) -> None:
    """Has records of this level and above written; without a level those that a person reads, as they are.

    Args:
        level: "debug", "info", "notice", "warning" or "error".
        as_json: As JSON, one object a line.
    """
    handler, told = _StandardError(), "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    handler.setFormatter(_Json() if as_json else logging.Formatter("fdt: %(message)s" if level is None else told))
    _LOG.handlers[:] = [handler]
    _LOG.propagate = False
    _LOG.setLevel((level or "notice").upper())


def notice(line: str) -> None:
    """Tells whoever runs this server."""
    _LOG.log(NOTICE, "%s", printable_lines(line))


def crashed() -> None:
    """Tells whoever runs this server of the exception that is being handled, and where it came from."""
    _LOG.error("%s", printable_lines(traceback.format_exc()))


def happened(what: Any, notable: Collection[type]) -> None:
    """Logs an event or an instruction of a pool: at level "info" if it is a notable one, else "debug".

    Args:
        what: A dataclass. Bytes in it are not shown: they may be somebody's secret.
        notable: Kinds.
    """
    logger, level = logging.getLogger("fdt.pool"), logging.INFO if type(what) in notable else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, Any] = {"event": type(what).__name__}
    for field in dataclasses.fields(what):
        value = getattr(what, field.name)
        if not isinstance(value, bytes) and field.name != "time_s":
            fields[field.name] = printable(value) if isinstance(value, str) else value
    words = " ".join(f"{name}={value}" for name, value in fields.items() if name != "event" and value not in ("", None))
    # A tick of the clock has nothing to tell.
    if words:
        logger.log(level, "%s %s", fields["event"], words, extra={"fields": fields})


configure()
