"""What a program can do that has got past admission, or has taken over its worker: nothing outside the worker's own folder."""

import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from fdt.worker import landlock, sandbox
from fdt.worker.forkserver import ForkServer
from fdt.worker.log_file import Log
from fdt.worker.network_namespace import Network
from tests.helpers.attacks import _ATTACKS, _TENSORFLOW
from tests.helpers.processes import run
from tests.helpers.toy_engine import ROOT

LIMIT_S = 180.0
NOBODY = 65534


def _has_walls() -> bool:
    try:
        return landlock.version() >= 6
    except OSError:
        return False


needs_landlock = pytest.mark.skipif(not _has_walls(), reason="a kernel with Landlock 6 (Linux 6.12) is needed")


def attacks(uid: int, *kind: str) -> dict[str, tuple[str, str, str]]:
    done = run([sys.executable, "-m", "tests.helpers.attacks", str(uid), *kind], limit_s=LIMIT_S, PYTHONPATH=str(ROOT))
    return {name: tuple(found) for name, found in json.loads(done.expect(0).stdout).items()}


@needs_landlock
@pytest.mark.parametrize(
    "uid",
    [
        os.getuid(),
        pytest.param(NOBODY, marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")),
    ],
)
def test_a_worker_that_has_fallen_reaches_nothing(uid: int) -> None:
    """Attacks on files, other processes and the kernel; each succeeds without walls, or it would show nothing."""
    found = attacks(uid)
    assert set(found) == set(_ATTACKS) and len(found) >= 50
    may = {"anyone", "root"} if uid == 0 else {"anyone"}
    assert {name: bare for name, (bare, _, by) in found.items() if by in may and bare != "done"} == {}
    expected = {"EACCES", "EPERM", "EXDEV"}
    assert {name: walled for name, (_, walled, _) in found.items() if walled not in expected} == {}


@needs_landlock
def test_operations_that_were_admitted_by_mistake_reach_no_file() -> None:
    found = attacks(os.getuid(), "tensorflow")
    assert set(found) == set(_TENSORFLOW)
    assert {name: result[:2] for name, result in found.items()} == dict.fromkeys(found, ("done", "EACCES"))


def test_walls_that_cannot_be_raised_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent() -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(landlock, "version", absent)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, str(sandbox.raise_walls(sandbox.Reach(tmp_path))).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told.startswith(
        "workers are walled in: system calls (seccomp), capabilities. NOT walled: files: Function not"
    )


@needs_landlock
def test_where_there_is_a_gpu_programs_may_be_started_and_stay_behind_the_same_walls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """XLA runs `ptxas`."""
    monkeypatch.setattr(sandbox, "has_gpu_devices", lambda: True)
    (tmp_path / "own").mkdir()
    (tmp_path / "secret").write_text("secret")
    statuses = []
    for program in (["/usr/bin/test", "-d", "/usr"], ["/bin/cat", str(tmp_path / "secret")]):
        child = os.fork()
        if not child:
            raised = sandbox.raise_walls(sandbox.Reach(tmp_path / "own"))
            os._exit(99 if raised.missing else os.spawnv(os.P_WAIT, program[0], program))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert statuses == [0, 1]


@needs_landlock
def test_where_there_is_a_gpu_a_process_may_name_its_threads_and_write_nothing_else_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CUDA does not start in a process that cannot name its threads."""
    monkeypatch.setattr(sandbox, "has_gpu_devices", lambda: True)
    parent = os.getpid()

    def written(path: str) -> bool:
        try:
            Path(path).write_text("named")
        except OSError:
            return False
        return True

    child = os.fork()
    if not child:
        raised = sandbox.raise_walls(sandbox.Reach(tmp_path))
        own = f"/proc/self/task/{os.getpid()}/comm"
        found = [written(own), written(f"/proc/{parent}/task/{parent}/comm"), written("/proc/self/oom_score_adj")]
        os._exit(99 if raised.missing else 0 if found == [True, False, False] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_landlock
def test_a_trial_runs_against_each_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        str(sandbox.tried())
        == f"workers are walled in: files (Landlock {landlock.version()}), system calls (seccomp), capabilities"
    )
    # One that is said to stand and does not hold is found out.
    claimed = sandbox.Sandbox((sandbox.Wall("files", True, "nothing"),))
    (found,) = sandbox._held(claimed, Path(__file__))
    assert not found.stands and found.by == "it was raised and did not hold"


def test_of_a_checkout_only_the_packages_that_are_loaded_can_be_read(tmp_path: Path) -> None:
    """Where the interpreter, or an entry of its path, lies in a home."""
    code = (
        "import sys, json, apart; from fdt.worker import sandbox; "
        "print(json.dumps(sorted(map(str, sandbox.python_folders()))))"
    )
    for name in ("apart", "not_loaded"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    done = run([sys.executable, "-P", "-c", code], limit_s=LIMIT_S, PYTHONPATH=f"{tmp_path}:{ROOT}").expect(0)
    folders = json.loads(done.stdout)
    assert str(tmp_path / "apart") in folders and str(ROOT / "fdt") in folders
    assert not {str(tmp_path), str(tmp_path / "not_loaded"), str(ROOT), str(ROOT / ".git"), str(Path.home())} & set(
        folders
    )


# ---- logs -----------------------------------------------------------------------------------------------------------


def test_a_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path, head_bytes=100, tail_bytes=50)
    os.close(log.writer)
    printed = b"".join(b"line %04d\n" % number for number in range(1000))
    for start in range(0, len(printed), 16):
        log.write(printed[start : start + 16])
    log.close()
    content = path.read_bytes()
    assert content.startswith(printed[:100]) and content.endswith(printed[-50:])
    assert b"bytes of this log were left out here" in content and len(content) < 300
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_short_log_is_whole(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", head_bytes=100, tail_bytes=50)
    os.write(log.writer, b"x" * 120)
    os.close(log.writer)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"x" * 120


def test_a_process_that_cannot_be_started_is_told_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    server = ForkServer(object, Network.HOST, 1.0)

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    try:
        server._start({"start": "worker-1", "log": str(tmp_path / "log")}, secret=-1)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, handler)
    told = json.loads(capfd.readouterr().out)
    assert told["exited"] == "worker-1" and told["status"] != 0
    assert "Resource temporarily unavailable" in told["why"] and "ulimit -u" in told["why"]
    assert not server._workers and not server._logs
