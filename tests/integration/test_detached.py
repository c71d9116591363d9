"""Runs without a terminal: what they print and how they end is there for whoever asks; the script here is any command."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fdt.cli import detached
from fdt.errors import JobError, UsageError

LIMIT_S = 30.0
# Goes on once somebody has written to the pipe, its argument.
SCRIPT = (
    "import sys\nprint('began', flush=True)\nprint(open(sys.argv[1]).read(), file=sys.stderr, flush=True)\nsys.exit(3)"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def started(*arguments: str, code: str = SCRIPT) -> detached.Run:
    return detached.start([sys.executable, "-c", code, *arguments], "train.py", "sync", 2)


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s


def printed(run: detached.Run, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    detached.show(run, None, follow=False)
    return capfdbinary.readouterr().out


def test_it_is_followed_to_its_end(pipe: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = started(str(pipe))
    assert (run.name, run.folder.stat().st_mode & 0o777) == ("run-1", 0o700)
    assert run.state[0] == "running" and run.keeper is not None
    assert psutil.Process(run.keeper).terminal() is None and os.getsid(run.keeper) == run.keeper
    pipe.write_text("go on")
    assert detached.show(run, None, follow=True) == 3
    assert capfdbinary.readouterr().out == b"began\ngo on\n"
    assert run.state == ("failed", "the script ended with status 3")
    assert detached.show(run, 1, follow=True) == 3
    assert capfdbinary.readouterr().out == b"go on\n"
    assert [each.name for each in detached.runs()] == ["run-1"]


def test_cancelled(pipe: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = started(str(pipe))
    wait(lambda: printed(run, capfdbinary) == b"began\n")
    assert run.cancel() == "cancelled"
    assert b"KeyboardInterrupt" in printed(run, capfdbinary) and run.keeper is None
    assert detached.show(run, None, follow=True) == 128 + signal.SIGINT
    assert run.cancel() == "cancelled", "once more does nothing"


def test_a_script_that_ignores_it_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import fdt.cli.detached; fdt.cli.detached._INTERRUPT_S = 1.0")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    code = "import signal\nsignal.signal(2, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: signal.pause()"
    run = started(code=code)
    wait(lambda: b"deaf" in detached.Reader(run.folder).read())
    assert run.cancel() == "cancelled" and run.status is not None and run.status.status == -signal.SIGKILL


def test_its_keeper_is_killed(pipe: Path) -> None:
    run = started(str(pipe))
    assert run.keeper is not None
    (script,) = psutil.Process(run.keeper).children()
    os.kill(run.keeper, signal.SIGKILL)
    script.wait(LIMIT_S)
    with pytest.raises(JobError, match="run-1 was killed together with its keeper process"):
        detached.show(run, None, follow=True)
    assert run.state == ("failed", "it was killed together with its keeper process")
    assert run.cancel() == "failed"


def test_a_process_that_the_script_leaves_behind_does_not_hold_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code = "import os, signal\nprint('began', flush=True)\nif not os.fork(): signal.alarm(60); signal.pause()"
    run = started(code=code)
    began_s = time.monotonic()
    assert detached.show(run, None, follow=True) == 0
    assert time.monotonic() - began_s < LIMIT_S and capfdbinary.readouterr().out == b"began\n"


def test_a_name_never_comes_again_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "_MAX_ENDED", 2)
    for number in range(1, 5):
        run = started(code="")
        assert run.name == f"run-{number}"
        assert detached.show(run, None, follow=True) == 0
    assert [each.name for each in detached.runs()] == ["run-3", "run-4"]


def test_names_that_are_none() -> None:
    for name, words in (("run-7", "fdt jobs"), ("job-3", "fdt logs job-3")):
        with pytest.raises(UsageError, match=words):
            detached.find(name)


def test_no_place_for_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    (home / "file").touch()
    with pytest.raises(UsageError, match="cannot be detached"):
        started()
