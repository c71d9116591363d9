"""Folders of processes that were killed are swept; those of the living, and of others, never."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from fdt.base import temporary_folders
from fdt.base.temporary_folders import PREFIXES, OwnFolder, sweep

_LIMIT_S = 60
_HOLD = """
import sys
from fdt.base.temporary_folders import OwnFolder
folder = OwnFolder("fdt-pool-")
(folder.path / "blobs").mkdir()
(folder.path / "blobs" / "array").write_bytes(bytes(1000))
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_goes_with_the_next_start(parent: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        first = OwnFolder("fdt-run-")
        assert (left / "blobs/array").exists(), "its owner lives"
        other.send_signal(signal.SIGKILL)
        other.wait(_LIMIT_S)
    second = OwnFolder("fdt-host-")
    assert not left.exists() and first.path.exists() and second.path.exists()
    assert second.path.stat().st_mode & 0o777 == 0o700
    first.remove()
    second.remove()
    assert list(parent.iterdir()) == []


def test_a_forked_child_does_not_let_go_of_its_parents_folder(parent: Path) -> None:
    folder = OwnFolder("fdt-run-")
    pid = os.fork()
    if not pid:
        folder.abandon()
        os._exit(0)
    os.waitpid(pid, 0)
    assert sweep(parent) == [] and folder.path.exists()
    folder.remove()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_only_our_own_are_touched(parent: Path, prefix: str) -> None:
    elsewhere = parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.lock").touch()
    link = parent / f"{prefix}link"
    link.symlink_to(elsewhere)
    unlocked = parent / f"{prefix}without-a-lock"
    unlocked.mkdir()
    linked = parent / f"{prefix}linked-lock"
    linked.mkdir()
    (linked / "owner.lock").symlink_to(elsewhere / "owner.lock")
    named = parent / "fdt-comparison"
    named.mkdir()
    (named / "owner.lock").touch()
    ours = parent / f"{prefix}left"
    ours.mkdir()
    (ours / "owner.lock").touch()
    assert sweep(parent) == [ours]
    assert all(path.exists() for path in (elsewhere / "owner.lock", link, unlocked, linked, named))


def test_folders_of_another_user(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = parent / "fdt-pool-left"
    left.mkdir()
    (left / "owner.lock").touch()
    monkeypatch.setattr(temporary_folders.os, "geteuid", lambda: os.stat(left).st_uid + 1)
    assert sweep(parent) == [] and left.exists()


def test_many_start_at_once_and_all_keep_theirs(parent: Path) -> None:
    """A sweeper may come between a folder and its lock."""
    made: list[OwnFolder] = []
    threads = [
        threading.Thread(target=lambda: made.extend(OwnFolder("fdt-pool-") for _ in range(25))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S)
    assert len(made) == 200 and all((folder.path / "owner.lock").exists() for folder in made)
    assert sweep(parent) == []
    for folder in made:
        folder.remove()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("length", [60, 75, 76, 77, 80, 107, 200])
def test_a_socket_fits_into_a_folder_whatever_the_temporary_folder_is_called(
    prefix: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        # Bytes count, not letters.
        begun = f"{short}/ü"
        parent = Path(begun + "x" * (length - len(os.fsencode(begun))))
        assert len(os.fsencode(parent)) == length
        parent.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        folder = OwnFolder(prefix)
        try:
            for name in ("workers.sock", "pool.sock"):
                with socket.socket(socket.AF_UNIX) as listening:
                    listening.bind(str(folder.path / name))
        finally:
            folder.remove()
