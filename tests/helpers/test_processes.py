"""The helper itself: statuses, the limit, the group."""

import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers.processes import background, run

# Starts a child that outlives it, says its process id, and then does what the test needs.
PARENT = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print("child", child.pid, flush=True)
"""


def child_is_gone(stdout: str) -> bool:
    """Waits for the kernel to finish what SIGKILL began; a zombie is gone too, nobody here reaps it."""
    try:
        child = psutil.Process(int(stdout.split()[1]))
        return child.status() == psutil.STATUS_ZOMBIE or child.wait(timeout=10) is None
    except psutil.NoSuchProcess:
        return True


def test_status_and_streams_are_in_the_message() -> None:
    finished = run([sys.executable, "-c", "import sys; print('out'); sys.exit('err')"], limit_s=30)
    assert (finished.status, finished.stdout, finished.stderr) == (1, "out\n", "err\n")
    with pytest.raises(AssertionError, match=r"expected exit status 0[\s\S]*exit status 1[\s\S]*out[\s\S]*err"):
        finished.expect(0)


def test_at_the_limit_a_process_can_show_where_it_is() -> None:
    code = "import threading\ndef here(): threading.Event().wait()\nhere()"
    finished = run([sys.executable, "-c", code], limit_s=3, PYTHONFAULTHANDLER="1")
    assert finished.status is None and "in here" in finished.stderr


def test_the_limit_ends_the_whole_group(tmp_path: Path) -> None:
    finished = run([sys.executable, "-S", "-c", PARENT + "threading.Event().wait()"], limit_s=5, cwd=tmp_path)
    assert finished.status is None and child_is_gone(finished.stdout)
    with pytest.raises(AssertionError, match="time limit"):
        finished.expect(0)


def test_a_process_in_the_background_takes_its_group_with_it() -> None:
    with background([sys.executable, "-c", PARENT + "threading.Event().wait()"]) as process:
        line = process.wait_for_line("child", limit_s=30)
    assert child_is_gone(line)


def test_a_line_that_never_comes_is_an_error_with_the_output() -> None:
    with (
        background([sys.executable, "-c", "import sys; sys.exit('no')"]) as process,
        pytest.raises(AssertionError, match=r"'address' was not said"),
    ):
        process.wait_for_line("address", limit_s=30)
