"""A notebook as a script: its cells in their order, with lines that errors name."""

import json
import linecache
import sys
from pathlib import Path

import pytest

from fdt.script import runner
from fdt.script.notebook_cells import source_of


def _notebook(folder: Path, *cells: str | list[str], kind: str = "code") -> Path:
    path = folder / "n.ipynb"
    about = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    path.write_text(json.dumps({**about, "cells": [{"cell_type": kind, "source": cell} for cell in cells]}))
    return path


def _source(path: Path) -> str:
    return source_of(str(path), path.read_bytes(), {}).decode()


def test_cells_follow_each_other(tmp_path: Path) -> None:
    path = _notebook(tmp_path, "a = 1", ["b = 2\n", "c = a + b"], "print(c)")
    assert _source(path) == "a = 1\n\nb = 2\nc = a + b\n\nprint(c)\n"
    assert linecache.getline(str(path), 4) == "c = a + b\n"
    assert _source(_notebook(tmp_path, "# Title", kind="markdown")) == "\n"


def test_our_own_magics_are_left_out_with_their_lines_kept(tmp_path: Path) -> None:
    path = _notebook(tmp_path, "%load_ext fdt\n%fdt attach --workers 2\nx = 1\nif x:\n    %fdt detach")
    assert _source(path) == "pass\npass\nx = 1\nif x:\n    pass\n"


def test_other_magics_are_ipythons(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="for developers, and for people with notebooks")
    assert "get_ipython().run_line_magic('time', 'x = 1')" in _source(_notebook(tmp_path, "%time x = 1"))


def test_an_error_shows_the_cells_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _notebook(tmp_path, "a = 1", "raise ValueError(a)")
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    assert runner.run(str(path), []) == 1
    error = capsys.readouterr().err
    assert f'File "{path}", line 3, in <module>\n    raise ValueError(a)\n' in error


@pytest.mark.parametrize("content", [b"", b"[]", b'{"cells": 3}', b'{"cells": [{}]}'])
def test_what_is_no_notebook_is_said(content: bytes) -> None:
    with pytest.raises(SyntaxError, match=r"n\.ipynb is no notebook of nbformat 4"):
        source_of("n.ipynb", content, {})
