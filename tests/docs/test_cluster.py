"""The tutorial on a cluster shows what commands print: each with --dry-run is run, and prints what stands below it.

`FDT_WRITE_GOLDEN=1` writes the page anew.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

from fdt.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "cluster.md"
# A command, and what it prints, up to the end of the block.
SHOWN = re.compile(r"```console\n\$ fdt (?P<command>[^\n]*--dry-run[^\n]*)\n(?P<output>.*?)```", re.DOTALL)


def test_what_is_shown_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", "/opt/fdt/bin/python")
    # `serve` sets it for its own process, which here is that of the tests.
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    (tmp_path / "train.py").touch()

    def printed(found: re.Match[str]) -> str:
        assert main.main(shlex.split(found["command"])) == 0
        return f"```console\n$ fdt {found['command']}\n{capsys.readouterr().out}```"

    text = PAGE.read_text()
    assert len(SHOWN.findall(text)) >= 3
    anew = SHOWN.sub(printed, text)
    if os.environ.get("FDT_WRITE_GOLDEN"):
        PAGE.write_text(anew)
    assert PAGE.read_text() == anew
