"""The audit log: what a line is, who may read it, and that no flood pushes lines out of it."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from fdt.errors import UsageError
from fdt.pool import audit
from fdt.pool.audit import AuditLog
from tests.unit.test_token_file import NOW_S, Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_an_object_without_control_characters(path: Path) -> None:
    log = AuditLog(path, Clock())
    log.write("job opened", "anna", job="job-1", script="a\nb\x1b[2J\x7f\u202e\x9b.py", workers=2)
    log.close()
    raw = path.read_bytes()
    assert raw.count(b"\n") == 1 and all(32 <= byte < 127 for byte in raw.rstrip(b"\n"))
    assert lines(path) == [
        {
            "time": "2026-09-21T14:13:20.000+00:00",
            "event": "job opened",
            "who": "anna",
            "job": "job-1",
            "script": "a\nb\x1b[2J\x7f\u202e\x9b.py",
            "workers": 2,
        }
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_flood_is_counted(path: Path) -> None:
    clock = Clock()
    log = AuditLog(path, clock)
    for number in range(1000):
        log.write("refused", "", number=number)
        log.write("refused", "bob", number=number)
    log.write("job opened", "anna")
    assert len(lines(path)) == 2 * audit._MAX_LINES + 1 and lines(path)[-1]["who"] == "anna"
    clock.now_s = NOW_S + audit._PERIOD_S
    log.write("refused", "", number=1000)
    left = 1000 - audit._MAX_LINES
    assert [(each["who"], each.get("left_out"), each.get("number")) for each in lines(path)[-3:]] == [
        ("", left, None),
        ("bob", left, None),
        ("", None, 1000),
    ]
    for _ in range(audit._MAX_LINES):
        log.write("refused", "")
    log.close()
    assert lines(path)[-1]["left_out"] == 1
    # Nothing is written behind the end.
    log.write("refused", "anna")
    assert lines(path)[-1]["left_out"] == 1


def test_the_file_is_bounded(path: Path) -> None:
    clock = Clock()
    log = AuditLog(path, clock, max_bytes=1000)
    for _ in range(100):
        clock.now_s += audit._PERIOD_S
        log.write("job opened", "anna", script="x" * 10_000)
    log.close()
    found = sorted(path.parent.iterdir())
    assert [each.name for each in found] == ["audit.log", *(f"audit.log.{number}" for number in range(1, 5))]
    assert {stat.S_IMODE(each.stat().st_mode) for each in found} == {0o600}
    assert sum(each.stat().st_size for each in found) < 5 * 1500
    assert lines(path)[0]["script"] == "x" * 1021 + "…"


def test_a_file_that_others_may_read_is_refused(path: Path, tmp_path: Path) -> None:
    path.touch(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        AuditLog(path)
    with pytest.raises(UsageError, match="cannot write the audit log"):
        AuditLog(tmp_path / "not" / "there")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot write the audit log"):
        AuditLog(path)


def test_a_pool_goes_on_when_it_cannot_write(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(path, Clock())
    assert log._file is not None

    def full(_: str) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(log._file.stream, "write", full)
    log.write("job opened", "anna")
    said = capsys.readouterr().err
    assert "cannot be written" in said and str(path) in said and "Traceback" not in said
    monkeypatch.undo()
    log.close()


def test_none() -> None:
    log = AuditLog(None)
    log.write("job opened", "anna")
    log.close()
