"""The laboratory: runs over two hosts, and that nothing of it remains."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.helpers.lab import FOLDER, ROOT, module
from tests.helpers.processes import PYTHON, Background, Finished, background, run

LIMIT_S = 300.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="`ip` (iproute2) makes the network namespaces"),
    pytest.mark.skipif(shutil.which("tc") is None, reason="`tc` (iproute2) limits the links"),
]

LEARNS = """
import keras
import numpy as np

x = np.random.default_rng(0).random((80, 8), np.float32)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
losses = model.fit(x, x.sum(axis=1, keepdims=True), batch_size=20, epochs=3, verbose=0).history["loss"]
print("learned", losses[-1] < losses[0])
"""
WAITS = "import time\nprint('running', flush=True)\ntime.sleep(600)\n"
FAILS = "import sys\nsys.exit(7)\n"


def written(folder: Path, text: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    return str(script)


def namespaces(pid: int) -> dict[str, int]:
    """Returns the namespaces of a process's laboratory, by name, and the numbers the kernel knows them by."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True).stdout
    names = re.findall(rf"^fdt-lab-{pid}-\w+", listed, re.MULTILINE)
    return {name: Path("/run/netns", name).stat().st_ino for name in names}


def processes_in(networks: Set[int]) -> list[int]:
    """Returns who is in network namespaces, also in those that have no name any more."""
    found = []
    for pid in psutil.pids():
        try:
            if Path("/proc", str(pid), "ns/net").stat().st_ino in networks:
                found.append(pid)
        except OSError:
            continue
    return found


@contextmanager
def typed(*arguments: str) -> Iterator[Background]:
    """The command, in the background."""
    with background([PYTHON, FOLDER, *arguments], cwd=ROOT) as process:
        yield process


def clear() -> Finished:
    return run([PYTHON, FOLDER, "--clear"], limit_s=LIMIT_S, cwd=ROOT).expect(0)


@pytest.mark.thorough
def test_both_runtimes_over_two_hosts_and_nothing_remains(tmp_path: Path) -> None:
    script = written(tmp_path, LEARNS)
    with module("pool").Lab(hosts=2, bandwidth="100Mbit") as lab:
        made = namespaces(os.getpid())
        assert len(made) == 4
        assert processes_in(set(made.values()))
        ring = lab.run(["--mode", "sync", script], timeout_s=LIMIT_S)
        central = lab.run(["--mode", "async", "--ps", "1", "--ps-place", "pool", script], timeout_s=LIMIT_S)
    for each in (ring, central):
        assert "learned True" in each.output
        assert [rank["rank"] for rank in each.report["fits"][0]["ranks"]] == [0, 1]
        assert all(each.sent_bytes[member] > 0 for member in ("pool", "host1", "host2"))
    assert namespaces(os.getpid()) == {}
    assert processes_in(set(made.values())) == []


def test_the_scripts_exit_status_is_passed_on_and_nothing_remains(tmp_path: Path) -> None:
    with typed("--hosts", "1", "--bandwidth", "1Gbit", "--", written(tmp_path, FAILS)) as process:
        assert process.process.wait(LIMIT_S) == 7, process.so_far().describe()
        assert namespaces(process.pid) == {}


@pytest.mark.thorough
def test_whoever_is_asked_to_end_removes_everything(tmp_path: Path) -> None:
    with typed("--hosts", "1", "--bandwidth", "1Gbit", "--", written(tmp_path, WAITS)) as process:
        process.wait_for_line("running", LIMIT_S)
        made = namespaces(process.pid)
        assert len(made) == 3
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(LIMIT_S) == 128 + signal.SIGTERM, process.so_far().describe()
        assert namespaces(process.pid) == {}
        assert processes_in(set(made.values())) == []


@pytest.mark.thorough
def test_one_that_was_killed_is_cleared_and_one_that_is_used_is_left(tmp_path: Path) -> None:
    with typed("--hosts", "1", "--bandwidth", "1Gbit", "--", written(tmp_path, WAITS)) as process:
        process.wait_for_line("running", LIMIT_S)
        made = namespaces(process.pid)
        assert not made.keys() & set(re.findall(r"removed (\S+)", clear().stdout))
        process.process.kill()
        process.process.wait(LIMIT_S)
        assert namespaces(process.pid) == made
        assert made.keys() <= set(re.findall(r"removed (\S+)", clear().stdout))
        assert namespaces(process.pid) == {}
        assert processes_in(set(made.values())) == []


@pytest.mark.thorough
def test_links_carry_what_they_are_said_to() -> None:
    words = ["--hosts", "2", "--bandwidth", "20Mbit", "--measure", "--seconds", "2"]
    finished = run([PYTHON, FOLDER, *words], limit_s=LIMIT_S, cwd=ROOT).expect(0)
    shares = [float(share) / 100 for share in re.findall(r"([\d.]+)%", finished.stdout)]
    assert len(shares) == 5, finished.describe()
    # No link carries more; a busy machine carries less. The last two are of flows whose clocks do not start and stop together.
    assert all(0.5 < share < 1.05 for share in shares[:3]), finished.describe()
    assert all(0.5 < share < 1.25 for share in shares[3:]), finished.describe()
