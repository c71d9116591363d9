"""A worker that takes too much is ended, its job fails alone with the reason, and the pool serves the next one at once."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from fdt.base import worker_bounds
from fdt.base.config import Credentials, ServeConfig
from fdt.base.worker_bounds import Bounds, Watch, machine_bytes
from fdt.errors import WorkerError
from fdt.pool.server import Server
from fdt.transport import rpc
from fdt.v1 import program_pb2
from tests.helpers.chain_engine import ChainLauncher, chained
from tests.helpers.chain_job import ALL, TOKEN, begin, indices, toy_program, value_of
from tests.helpers.chain_pool import TIMING
from tests.helpers.toy_engine import ROOT
from tests.helpers.waiting import wait_until

ROWS = np.arange(1.0, 3.0)
SPEC = program_pb2.Tensor(name="x", dtype="float64", shape=[len(ROWS)])
MEMORY, DISK, TASKS = 400_000_000, 200_000_000, 60
_START_LIMIT_S = 60.0


@contextmanager
def pool(folder: Path, walls: bool) -> Iterator[tuple[str, Server]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        config = ServeConfig(
            listen="127.0.0.1:0",
            token=TOKEN,
            timing=TIMING,
            num_workers=2,
            walls=walls,
            bounds=Bounds(MEMORY, DISK, TASKS),
        )
        server = Server(config, {"sync": ChainLauncher()}, folder)
        yield server.start(), server
        server.stop()


@pytest.fixture(scope="module", params=[True, False], ids=["walls", "no walls"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pool(tmp_path_factory.mktemp("p"), request.param) as (address, _):
        yield address


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("leak", r"used [\d.]+ [MG]B of memory, and may use 400 MB \(--memory\)"),
        ("fill", r"used \d+ MB of disk, and may use 200 MB \(--disk\)"),
        ("fork", r"started [\d,]+ processes and threads, and may have 60|PermissionError|Operation not permitted"),
        ("crash", r"ended with signal 11 \(SIGSEGV\).*A library crashed"),
    ],
)
def test_a_job_that_takes_too_much_fails_alone(address: str, fault: str, words: str) -> None:
    with rpc.connect(address, Credentials(TOKEN), TIMING) as channel:
        with closing(begin(channel, address, {"faults": f"{fault}:1:{chained(0, ROWS[0])}"})) as job:
            program, data = job.load(toy_program(11), job), job.bind([ROWS.view(np.uint8)], [SPEC])
            job.run(program, data, indices(0))
            with pytest.raises(WorkerError, match=f"(?s){words}") as error:
                job.drain(program, ALL)
            if fault in ("leak", "fill"):
                assert len(str(error.value).splitlines()) == 1 and str(error.value).startswith("Rank 1 of job ")
                assert job.faults == [], "it is not begun again"
        # What was left of the workers' own folders went with them; the next job has its workers at once.
        with closing(begin(channel, address, {})) as following:
            program, data = following.load(toy_program(12), following), following.bind([ROWS.view(np.uint8)], [SPEC])
            following.run(program, data, indices(0))
            assert value_of(following.drain(program, ALL).contents[0]) == chained(0, ROWS[0])


def test_without_a_bound_a_worker_has_nine_tenths_of_its_machine(tmp_path: Path) -> None:
    """Of its container's memory, where that has less: the control group's, or that of one around it."""
    machine = psutil.virtual_memory().total
    assert machine_bytes(tmp_path, "0::/a/b\n") == machine
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/memory.max").write_text("max\n")
    assert machine_bytes(tmp_path, "0::/a/b\n") == machine
    (tmp_path / "a/memory.max").write_text("4000000\n")
    assert machine_bytes(tmp_path, "1:cpu:/x\n0::/a/b\n") == 4_000_000
    (tmp_path / "memory.max").write_text("3000000\n")
    assert machine_bytes(tmp_path, "0::/../elsewhere\n") == 3_000_000
    own = Bounds().here().memory_bytes
    assert own is not None and 0.8 * machine_bytes() < own < machine_bytes()
    assert Bounds(5).here() == Bounds(5)
    assert "nine tenths" in str(Bounds()) and str(Bounds(4_000_000_000)) == "each worker may use 4.00 GB of memory"


def test_the_kernel_ends_workers_before_others(address: str) -> None:
    """Each may have most of the memory, so together they may use it up."""
    score = Path("/proc/self/oom_score_adj").read_text()

    def scores() -> list[str]:
        children = psutil.Process().children(recursive=True)
        return [_read(Path(f"/proc/{child.pid}/oom_score_adj")) for child in children]

    wait_until(lambda: scores().count("500\n") >= 2, lambda: f"of the workers: {scores()}", _START_LIMIT_S)
    assert score != "500\n" and score in scores(), "the process that forks them is as it was"


def _read(path: Path) -> str:
    """Returns a file of a process, "" if that has ended."""
    with suppress(OSError):
        return path.read_text()
    return ""


def test_what_a_worker_has_from_the_process_that_forked_it_counts_in_part(tmp_path: Path) -> None:
    """Two processes share 200 MB: each has half of it."""
    code = (
        "import os, signal, sys\n"
        "shared = bytearray(b'x' * 200_000_000)\n"
        "child = os.fork()\n"
        "if not child: signal.pause()\n"
        "print(child, flush=True); sys.stdin.read(); os.kill(child, 9)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.Process(child).memory_info().rss > 200_000_000
        allowed, refused = (Watch(child, tmp_path, Bounds(memory_bytes=n), may_fork=False) for n in (150e6, 50e6))
        assert allowed.over() == ""
        match = re.search(r"used (\d+) MB", refused.over())
        assert match and 100 <= int(match[1]) <= 150
        parent.communicate()


def test_processes_of_a_worker_count_as_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the looks take.
    monkeypatch.setattr(worker_bounds, "time", SimpleNamespace(monotonic=lambda: 5.0))
    code = "import os, signal, sys\nfor _ in range(3): os.fork()\nprint(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        for _ in range(8):
            leader.stdout.readline()
        watches = [Watch(leader.pid, tmp_path, Bounds(tasks=tasks), may_fork=True) for tasks in (8, 7, 5)]
        found = [watch.over() for watch in watches]
        again = [watch.over() for watch in watches]
        os.killpg(leader.pid, signal.SIGKILL)
    # No more are counted than are needed to tell.
    assert found == ["", *(f"started {n + 1} processes and threads, and may have {n}" for n in (7, 5))]
    assert again == ["", "", ""], "not before it is time again"


def test_a_worker_with_very_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_bounds, "_MAX_FILES", 20)
    for number in range(30):
        (tmp_path / str(number)).touch()
    watch = Watch(os.getpid(), tmp_path, Bounds(disk_bytes=1 << 30), may_fork=False)
    assert watch.over() == "wrote more than 20 files"
