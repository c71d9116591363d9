"""Interpreters that we start: what lies in the working directory is no module of theirs."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fdt.base import interpreter

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 60
# The first is imported by all of our programs, the others by some, or by how they are started.
_MODULES = ("argparse", "fdt", "runpy", "psutil", "pip", "socket", "typing")
_READS = "import argparse, psutil, socket, fdt.cli.main; fdt.cli.main.main(['--version'])"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Returns a folder of somebody else's."""
    for name in _MODULES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)\n")
    return tmp_path


def _status(command: Sequence[str], folder: Path) -> int:
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=_LIMIT_S, check=False).returncode


def test_a_file_of_the_working_directory_stands_in_for_no_module(elsewhere: Path) -> None:
    alone = elsewhere / "alone.py"
    alone.write_text("import argparse, socket, typing\n")
    assert _status([sys.executable, "-m", "fdt", "--version"], elsewhere) == 77, "the folder does what it is for"
    for command in (
        interpreter.of_module("fdt", "--version"),
        interpreter.of_module("pip", "--version"),
        interpreter.of_code(_READS),
        interpreter.for_script("fdt", "--version"),
        interpreter.of_file(str(alone)),
    ):
        assert _status(command, elsewhere) != 77, command


def _texts(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what stands in texts that people read."""
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield from ast.walk(each)


def _is_python(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).rpartition("/")[2].startswith("python")


def _commands(tree: ast.AST) -> Iterator[int]:
    """Yields lines in which an interpreter is named, but in a text."""
    shown = set(_texts(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("executable", "orig_argv", "_base_executable"):
            if node not in shown:
                yield node.lineno
        elif isinstance(node, ast.List | ast.Tuple) and node.elts and _is_python(node.elts[0]):
            yield node.lineno


def test_no_other_module_starts_interpreters() -> None:
    bad = ["[sys.executable, '-m', 'x']", "['python3', '-c', 'x']", "[*sys.orig_argv]", "('/usr/bin/python', 'x')"]
    assert all(list(_commands(ast.parse(text))) for text in bad)
    assert not list(_commands(ast.parse("f'{sys.executable} -m pip'")))
    files = [path for package in ("fdt", "nfdt", "hfdt") for path in (_ROOT / package).rglob("*.py")]
    found = [f"{path.relative_to(_ROOT)}:{line}" for path in files for line in _commands(ast.parse(path.read_text()))]
    assert {place.partition(":")[0] for place in found} == {"fdt/base/interpreter.py"}, found
