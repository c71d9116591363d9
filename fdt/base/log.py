"""Logs what a server does, by Python's `logging`: lines for a person, lines with times and levels, or JSON.

Answers to a person's command are printed; a server's own events are logged here, on standard error.
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

# A level for what an operator has to know at a server's start: above INFO, and not a warning.
NOTICE = 25
logging.addLevelName(NOTICE, "NOTICE")
_LOG = logging.getLogger("fdt")


class _StandardError(logging.Handler):
    """Writes to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        # The terminal or the other end of a pipe may be gone; a pool goes on without it.
        with contextlib.suppress(OSError, ValueError):
            print(self.format(record), file=sys.stderr, flush=True)


class _Json(logging.Formatter):
    """Writes one object per line: time (UTC), level, logger, message, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        about = {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        return json.dumps(about | vars(record).get("fields", {}), default=str)


def configure(level: str | None = None, as_json: bool = False) -> None:
    """Writes records of this level and above; without a level, notices and above as plain lines for a person.

    Args:
        level: "debug", "info", "notice", "warning" or "error".
        as_json: Whether to write JSON, one object per line.
    """
    handler, told = _StandardError(), "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    handler.setFormatter(_Json() if as_json else logging.Formatter("fdt: %(message)s" if level is None else told))
    _LOG.handlers[:] = [handler]
    _LOG.propagate = False
    _LOG.setLevel((level or "notice").upper())


def notice(line: str) -> None:
    """Logs a line for the server's operator."""
    _configure_once()
    _LOG.log(NOTICE, "%s", printable_lines(line))


def crashed() -> None:
    """Logs the traceback of the exception that is being handled."""
    _configure_once()
    _LOG.error("%s", printable_lines(traceback.format_exc()))


def happened(what: Any, notable: Collection[type]) -> None:
    """Logs an event or an instruction of a pool: at level "info" if it is a notable one, else "debug".

    Args:
        what: A dataclass. Its bytes fields are not shown, since they may be a user's secret.
        notable: Classes of notable events and instructions.
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
    # A tick of the clock has no fields and is not logged.
    if words:
        logger.log(level, "%s %s", fields["event"], words, extra={"fields": fields})


def _configure_once() -> None:
    # Not at import: clients import this too, and a program that uses `fdt.attach` has the logger `fdt` for itself.
    if not _LOG.handlers:
        configure()
