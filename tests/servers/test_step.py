"""A step is one graph: wherever its parts are it comes to the same, and workers' pushes follow each other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.steps_over_hosts import PLACES, STEPS, Pushes

LIMIT_S = 300
_COMMAND = [sys.executable, "-m", "tests.helpers.steps_over_hosts"]
_ROOT = Path(__file__).parents[2]
_PLACES = [*PLACES, "rounded", "rounded in one process"]


def test_pushes_of_many_threads_follow_each_other() -> None:
    """No push is lost, and whoever pulls gets all entries of one version."""
    assert Pushes(["/CPU:0"], ["/CPU:0"] * 4).differences(50) == []


@pytest.fixture(scope="module")
def over_hosts() -> dict[str, list[str]]:
    """What was not as it should be, by the names of the cases; two processes, started once since that takes long."""
    with subprocess.Popen(
        _COMMAND, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as lender:
        try:
            assert lender.stdout is not None
            address = lender.stdout.readline().strip()
            command = [*_COMMAND, address]
            done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        finally:
            lender.kill()
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("step", [" ".join(step) for step in STEPS])
def test_over_two_hosts_a_step_comes_to_the_same(over_hosts: dict[str, list[str]], step: str, place: str) -> None:
    """By the same lags: delays, sums of squares, all variables of shards and replica; with 16-bit floats nearly."""
    assert over_hosts[f"{place}, {step}"] == []


@pytest.mark.parametrize("where", ["workers of both", "workers in turns", "workers and a shard each"])
def test_pushes_over_two_hosts_follow_each_other(over_hosts: dict[str, list[str]], where: str) -> None:
    assert over_hosts[where] == []
