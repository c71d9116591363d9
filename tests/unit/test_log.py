"""What a server logs."""

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Iterator

import pytest

from fdt.base import log
from fdt.pool.state import events as lifecycle

_SUBMITTED = lifecycle.Submitted(1.0, "job-1", "sync", 2, script="t\x1b[2Jrain.py", session=b"secret")
_STARTED = lifecycle.StartWorker("w1", "sync")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    log.configure()


def _log() -> None:
    log.notice("a line\nof two")
    for what in (_SUBMITTED, _STARTED):
        log.happened(what, lifecycle.NOTABLE)


def test_without_options_a_person_reads_what_has_to_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure()
    _log()
    assert capsys.readouterr() == ("", "fdt: a line\nof two\n")


@pytest.mark.parametrize(("level", "events"), [("warning", 0), ("notice", 1), ("info", 2), ("debug", 3)])
def test_a_level_tells_what_is_logged(level: str, events: int, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(level, as_json=True)
    _log()
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(told) == events
    for each in told:
        assert datetime.datetime.fromisoformat(each["time"]).tzinfo is not None
    if events > 1:
        assert {
            "event": "Submitted",
            "job": "job-1",
            "mode": "sync",
            "level": "info",
            "logger": "fdt.pool",
        }.items() <= (told[1].items())


def test_what_others_sent_is_shown_as_text_and_secrets_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("debug")
    _log()
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "secret" not in shown
    assert "INFO    fdt.pool: Submitted job=job-1 mode=sync num_workers=2 script=" in shown


def test_what_is_notable_is_something_that_happens() -> None:
    kinds = {kind for base in (lifecycle.Event, lifecycle.Instruction) for kind in base.__subclasses__()}
    assert kinds > lifecycle.NOTABLE


def test_what_nobody_reads_any_more_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of a pool's standard error may be gone: the thread that told something went on, or the pool hung."""
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        log.configure()
        log.notice("a line")
        try:
            raise ValueError("seen by nobody")
        except ValueError:
            log.crashed()
