"""What a script writes that is only looked at: it finds it again, and nobody else ever does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_LIMIT_S = 60.0
# Enters the view as a process does that may make no mount namespace, or has no Landlock either, and does to a folder whatever
# changes one.
_SCRIPT = """
import json, os, sys, threading
from pathlib import Path
from fdt.script import file_overlay
from fdt.errors import UsageError
from fdt.worker import landlock

def refused(*_, **__):
    raise OSError(1, "not here")

if "namespaces" in sys.argv:
    file_overlay.unshare = refused
if "landlock" in sys.argv:
    landlock.restrict = refused
try:
    said = file_overlay.enter([Path("kept").absolute()])
except UsageError as error:
    sys.exit(f"refused: {error}")
attempts = {
    "overwrite": lambda: Path("final.keras").write_text("new"),
    "create": lambda: Path("created").write_text("new"),
    "remove": lambda: os.remove("old.txt"),
    "rename": lambda: os.rename("renamed.txt", "moved"),
    "folder": lambda: os.makedirs("deep/deeper"),
    "temporary": lambda: Path(__import__("tempfile").mkdtemp(), "x").write_text("new"),
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = True
    except OSError:
        found[name] = False
found["reads back"] = Path("final.keras").read_text()
Path("kept/result").write_text("stays")
print(json.dumps({"said": said, "again": file_overlay.enter(), **found}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("work", "work/kept", "work/folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "work/final.keras").write_text("trained")
    (tmp_path / "work/old.txt").write_text("old")
    (tmp_path / "work/renamed.txt").write_text("old")
    return tmp_path / "work"


def _run(folder: Path, *missing: str, **env: str) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if k != "FDT_WRITES"} | env
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT, *missing],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


def _assert_unchanged(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["final.keras", "folder", "kept", "old.txt", "renamed.txt"]
    assert (folder / "final.keras").read_text() == "trained" and (folder / "old.txt").read_text() == "old"


def test_writes_are_found_again_by_the_script_and_by_nobody_else(folder: Path) -> None:
    done = _run(folder)
    found = json.loads(done.stdout)
    if "memory" not in found["said"]:
        pytest.skip(f"this system gives no mount namespace: {found['said']}")
    assert all(found[name] for name in ("overwrite", "create", "remove", "rename", "folder", "temporary")), found
    assert found["reads back"] == "new" and found["again"] == ""
    _assert_unchanged(folder)
    assert (folder / "kept/result").read_text() == "stays"


def test_without_a_namespace_writes_are_refused(folder: Path) -> None:
    done = _run(folder, "namespaces")
    if done.returncode:
        pytest.skip(f"this system has no Landlock: {done.stderr}")
    found = json.loads(done.stdout)
    assert "refused (not here)" in found["said"]
    assert not any(found[name] for name in ("overwrite", "create", "remove", "rename", "folder")), found
    assert found["temporary"] and found["reads back"] == "trained"
    _assert_unchanged(folder)
    assert (folder / "kept/result").read_text() == "stays"


def test_where_nothing_keeps_files_the_command_is_refused_with_the_remedy(folder: Path) -> None:
    done = _run(folder, "namespaces", "landlock")
    assert done.returncode == 1 and "FDT_NO_WALLS=1" in done.stderr and "not here" in done.stderr
    _assert_unchanged(folder)


def test_the_user_may_have_writes_stay(folder: Path) -> None:
    found = json.loads(_run(folder, FDT_NO_WALLS="1").stdout)
    assert "stays" in found["said"] and (folder / "final.keras").read_text() == "new"
