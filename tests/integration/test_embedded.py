"""The pool of a run: there quickly, without a port, and gone with the run however it ends."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fdt.base.config import Credentials, RunConfig, Timing
from fdt.client import embedded_pool
from fdt.errors import AccessError, PoolUnreachableError
from fdt.transport import rpc
from fdt.v1 import pool_pb2, pool_pb2_grpc
from tests.helpers.ends import wait_gone
from tests.helpers.thorough import some_of

LIMIT_S = 60.0
CONFIG = RunConfig(script="x.py", num_workers=1, timing=Timing(connect_s=LIMIT_S))
# Prints what it started, then waits for its end.
PARENT = """
import json, sys, psutil
from fdt.client import embedded_pool
from fdt.transport import rpc
from fdt.base.config import RunConfig, Timing
from fdt.v1 import pool_pb2, pool_pb2_grpc
pool = embedded_pool.start(RunConfig(script="x.py", num_workers=1, timing=Timing(connect_s=60.0)))
channel = rpc.connect(pool.address, pool.credentials, Timing())
pool_pb2_grpc.PoolStub(channel).Describe(pool_pb2.DescribeRequest(), timeout=60)
print(json.dumps([process.pid for process in psutil.Process().children(recursive=True)]), flush=True)
sys.stdin.read()
"""


def test_serves_and_ends() -> None:
    pool = embedded_pool.start(CONFIG)
    directory = Path(pool.address.removeprefix("unix:")).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    try:
        with rpc.connect(pool.address, pool.credentials, CONFIG.timing) as channel:
            reply = pool_pb2_grpc.PoolStub(channel).Describe(pool_pb2.DescribeRequest(), timeout=LIMIT_S)
            assert list(reply.modes) == ["sync"] and reply.num_workers == 1
        with pytest.raises(AccessError):
            rpc.connect(pool.address, Credentials("wrong"), CONFIG.timing)
        family = psutil.Process(pool._process.pid)
        family = [family, *family.children(recursive=True)]
        assert not [c for process in family for c in process.net_connections("inet") if c.status == "LISTEN"]
        assert not any(pool.token in " ".join(process.cmdline()) for process in family)
        assert not any(pool.token in json.dumps(process.environ()) for process in family)
    finally:
        pool.close()
    wait_gone(family)
    assert not directory.exists()


@pytest.mark.parametrize("end", some_of([signal.SIGKILL, signal.SIGTERM], [signal.SIGKILL]))
def test_gone_with_its_parent(end: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        family = [psutil.Process(pid) for pid in json.loads(parent.stdout.readline())]
        assert len(family) >= 2
        os.kill(parent.pid, end)
        parent.wait(LIMIT_S)
        wait_gone(family, LIMIT_S)


def test_gone_when_the_pool_is_killed() -> None:
    pool = embedded_pool.start(CONFIG)
    try:
        rpc.connect(pool.address, pool.credentials, CONFIG.timing).close()
        workers = psutil.Process(pool._process.pid).children(recursive=True)
        os.kill(pool._process.pid, signal.SIGKILL)
        wait_gone(workers)
    finally:
        pool.close()


def test_is_waited_for_as_long_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    _start(monkeypatch, "import sys, time; time.sleep(1); from fdt.pool.server import main; sys.exit(main())")
    pool = embedded_pool.start(CONFIG)
    try:
        pool.wait()
        rpc.connect(pool.address, pool.credentials, Timing(connect_s=LIMIT_S)).close()
    finally:
        pool.close()


def test_says_why_it_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _start(monkeypatch, "raise SystemExit('no room')")
    pool = embedded_pool.start(CONFIG)
    try:
        with pytest.raises(PoolUnreachableError, match="status 1: no room"):
            pool.wait()
    finally:
        pool.close()
    slow = embedded_pool.start(dataclasses.replace(CONFIG, timing=Timing(warm_s=0.0)))
    try:
        with pytest.raises(PoolUnreachableError, match="did not listen within 0 s"):
            slow.wait()
    finally:
        slow.close()


def _start(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Has another program started in the place of the pool."""
    popen = subprocess.Popen
    monkeypatch.setattr(
        embedded_pool.subprocess, "Popen", lambda command, **options: popen([command[0], "-P", "-c", code], **options)
    )
