"""Which logs of workers a pool keeps."""

from pathlib import Path

import pytest

from fdt.worker import log_file
from fdt.worker.log_file import LogFolder


def test_the_logs_of_those_that_ended_long_ago_go_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_MAX_LOGS", 2)
    folder = LogFolder(tmp_path / "logs")
    for worker in ("a", "b", "c", "d"):
        folder.of(worker).write_text("")
    for worker in ("c", "a", "gone", "b"):
        folder.ended(worker)
    assert sorted(path.stem for path in folder.path.iterdir()) == ["b", "d"]
