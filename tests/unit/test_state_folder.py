"""What a pool leaves to the next one: the list of its jobs, and its token; and what is no such folder."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fdt.errors import UsageError
from fdt.pool import journal
from fdt.pool.journal import FILE, Entry
from fdt.pool.state.entities import Job, JobState
from fdt.pool.state_folder import StateFolder


def entry(number: int, state: JobState = JobState.FINISHED, steps: int = 7, reason: str = "") -> Entry:
    job = Job(f"job-{number}", "sync", 2, "train.py", 10.0 * number, session=bytes([number]) * 16, state=state)
    job.ended_s, job.reason = (10.0 * number + 5 if state.ended else 0.0), reason
    return Entry.of(job, steps)


@contextmanager
def opened(path: Path) -> Iterator[StateFolder]:
    folder = StateFolder(path)
    try:
        yield folder
    finally:
        folder.close()


def test_the_next_pool_finds_jobs_and_token(tmp_path: Path) -> None:
    path = tmp_path / "not/yet/there"
    running = entry(2, JobState.RUNNING, 30)
    with opened(path) as folder:
        assert folder.entries == [] and folder.token("first") == "first"
        folder.keep([entry(1), entry(2, JobState.QUEUED, 0)])
        folder.keep([entry(1), running, entry(10)])
        # Those above it, too: a pool's token may be there.
        assert {each.stat().st_mode & 0o777 for each in (path, path.parent, path.parent.parent)} == {0o700}
        assert {each.name: each.stat().st_mode & 0o077 for each in path.iterdir() if each.name == "token"} == {
            "token": 0
        }
    for file in path.iterdir():
        os.utime(file, (1e9, 1e9))
    with opened(path) as folder:
        assert folder.token("second") == "first"
        first, second, third = folder.entries
        assert (first, third) == (entry(1), entry(10))
        assert (second.state, second.steps, second.reason) == ("interrupted", 30, "its pool ended")
        assert second.ended_s == 1e9 and second.session == running.session
        # A job that is forgotten goes from the file too.
        folder.keep([third])
    with opened(path) as folder:
        assert folder.entries == [third]


def test_a_killed_pool_frees_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from fdt.pool.state_folder import StateFolder;"
        "from tests.unit.test_state_folder import entry, JobState;"
        "StateFolder(Path(sys.argv[1])).keep([entry(3, JobState.RUNNING)]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], timeout=60, check=False)
    assert done.returncode == -9
    with opened(tmp_path / "s") as folder:
        assert [(each.name, each.state) for each in folder.entries] == [("job-3", "interrupted")]


def refused(path: Path, words: str) -> None:
    before = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()} if path.is_dir() else {}
    with pytest.raises(UsageError, match=words) as error:
        StateFolder(path)
    assert "Received: " in str(error.value)
    after = {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()} if path.is_dir() else {}
    assert {name: after.get(name) for name in before} == before, "nothing is lost"


def test_a_folder_that_another_pool_uses(tmp_path: Path) -> None:
    with opened(tmp_path / "s"):
        refused(tmp_path / "s", f"in use by another pool, process {os.getpid()}.*--state DIR")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    tmp_path.chmod(0o700)
    refused(tmp_path, "its own: expected an empty folder.*--state DIR.*thesis.tex")
    refused(tmp_path / "thesis.tex", "File exists")


def test_a_folder_that_others_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir(mode=0o755)
    refused(tmp_path / "s", "chmod 700")
    (tmp_path / "s").chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused(tmp_path / "s", "another user")


def test_a_journal_that_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    (folder / FILE).write_bytes(b"no database at all" * 100)
    refused(folder, "not a database.*--state DIR")
    (folder / FILE).unlink()
    with sqlite3.connect(folder / FILE) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    refused(folder, "no journal of a pool.*application_id=0x0")


def test_a_journal_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_VERSION", 1)
        with opened(tmp_path / "s") as folder:
            folder.keep([entry(1)])
    refused(tmp_path / "s", "expected version 2.*Received: version=1")


def test_a_damaged_journal(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as folder:
        folder.keep([entry(number) for number in range(200)])
    content = bytearray((tmp_path / "s" / FILE).read_bytes())
    content[4096:8192] = b"\xff" * 4096
    (tmp_path / "s" / FILE).write_bytes(content)
    refused(tmp_path / "s", "cannot be used")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], timeout=30, check=True)


def test_a_full_disk_and_one_that_may_not_be_written(
    small_disk: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filler = small_disk / "filler"
    (small_disk / "s").mkdir(mode=0o700)
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(UsageError, match=r"(full|space).*--state DIR"):
        StateFolder(small_disk / "s")
    filler.unlink()
    shutil.rmtree(small_disk / "s")
    with opened(small_disk / "s") as folder:
        folder.keep([entry(1)])
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
            while True:
                file.write(b"x" * 4096)
        long = [entry(number, reason="r" * 1000) for number in range(1, 60)]
        folder.keep(long)
        folder.keep(long)
        said = capfd.readouterr().err
        assert said.count("cannot be kept") == 1 and "the pool goes on" in said
        filler.unlink()
        folder.keep(long)
        assert "is kept again" in capfd.readouterr().err
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], timeout=30, check=True)
    with pytest.raises(UsageError, match=r"Read-only file system.*--state DIR"):
        StateFolder(small_disk / "s")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], timeout=30, check=True)
    with opened(small_disk / "s") as folder:
        assert folder.entries == long


def test_a_folder_that_is_deleted_is_made_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as folder:
        folder.token("the token")
        folder.keep([entry(1)])
        shutil.rmtree(tmp_path / "s")
        folder.keep([entry(1)])
        refused(tmp_path / "s", "in use")
    with opened(tmp_path / "s") as folder:
        assert folder.entries == [entry(1)] and folder.token("another") == "the token"
