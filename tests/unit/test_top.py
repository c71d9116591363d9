"""`fdt top` and `fdt page`: what they print, and what leads to them."""

import argparse
import contextlib
import json
import os
import pty
import select
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fdt.base.config import ServeConfig
from fdt.base.limits import DEFAULT
from fdt.cli import top
from fdt.errors import ProtocolError, UsageError
from fdt.pool import server, view
from fdt.pool.audit import AuditLog
from fdt.pool.observations import Traffic
from fdt.pool.snapshot import HostSnapshot, JobSnapshot, Snapshot
from fdt.v1 import pool_pb2

LIMIT_S = 20.0
OPTIONS = argparse.Namespace(server="127.0.0.1:7077", interval=2.0)


def job(number: int, state: str, **more: Any) -> JobSnapshot:
    return JobSnapshot(f"job-{number}", "sync", state, 1200, (), script="train.py", num_workers=2, **more)


def shown(*jobs: JobSnapshot) -> dict[str, Any]:
    hosts = [
        HostSnapshot("", 4, 2, 8, Traffic(0, 0, 0, 41.2e6, 1500)),
        HostSnapshot("node\x1b[2J (10.0.0.2)", 2, 0, 16),
    ]
    return view.overview(Snapshot(jobs, [], hosts), 100.0)


JOBS = (
    job(1, "finished", submitted_s=10, ended_s=75),
    job(2, "failed", submitted_s=20, ended_s=25, lost=(("job-0", "failed"),)),
    job(3, "queued", submitted_s=90),
    job(4, "running", submitted_s=70, rate=12.34),
)


def test_a_pool_as_lines() -> None:
    lines = top.screen(shown(*JOBS))
    assert lines == [
        "2 of 6 workers busy, 1 job(s) running, 1 queued, 4 known",
        "",
        "HOST                    WORKERS   CORES  MEMORY     SENT  RECEIVED  GPUS",
        "this machine                2/4   0.0/8     0 B  41 MB/s    2 kB/s  -",
        "node\\x1b[2J (10.0.0.2)      0/2  0.0/16     0 B    0 B/s     0 B/s  -",
        "",
        "JOB    STATE     MODE  WORKERS  STEPS  STEPS/S    TIME  FAULTS  SCRIPT",
        "job-4  running   sync        2  1,200     12.3     30s       -  train.py",
        "job-3  queued    sync        2  1,200        -     10s       -  train.py",
        "job-2  failed    sync        2  1,200        -      5s       1  train.py",
        "job-1  finished  sync        2  1,200        -  1m 05s       -  train.py",
    ]


def test_owners_are_shown_where_there_are_some() -> None:
    owned = job(5, "running", submitted_s=90, owner="anna")
    assert top.screen(shown(*JOBS, owned))[6:8] == [
        "JOB    STATE     MODE  WORKERS  STEPS  STEPS/S    TIME  FAULTS  OWNER  SCRIPT",
        "job-4  running   sync        2  1,200     12.3     30s       -  -      train.py",
    ]


@pytest.mark.parametrize("height", [1, 6, 10, 24])
def test_a_screen_is_as_high_as_the_terminal(height: int) -> None:
    many = [job(number, "finished") for number in range(1000)]
    lines = top.screen(shown(*many), height)
    assert len(lines) <= max(height, 8)
    assert lines[-1] == f"and {1000 - max(0, height - 8)} more"
    assert top.screen(shown(), height)[-1] == "no jobs"


class Stub:
    """Answers with a view."""

    def __init__(self, raw: bytes | None = None) -> None:
        self.raw, self.asked = json.dumps(shown(*JOBS)).encode() if raw is None else raw, 0

    def View(self, _: pool_pb2.ViewRequest, timeout: float) -> pool_pb2.ViewReply:
        self.asked += 1
        return pool_pb2.ViewReply(view=self.raw)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setattr(top, "connect", lambda options: contextlib.nullcontext())
    monkeypatch.setattr(top.pool_pb2_grpc, "PoolStub", lambda channel: stub)
    return stub


def test_once_and_plain_where_there_is_no_terminal(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    assert top.top(OPTIONS) == 0
    printed = capsys.readouterr().out
    assert stub.asked == 1 and "job-4  running" in printed and "\x1b" not in printed


def test_a_view_that_is_none(stub: Stub) -> None:
    stub.raw = b"{"
    with pytest.raises(ProtocolError, match=r"sent no view that can be read"):
        top.top(OPTIONS)


@contextlib.contextmanager
def terminal() -> Iterator[int]:
    """Has this process a terminal; yields its far end. No fixture: pytest sets its own streams once these are set up."""
    far, near = pty.openpty()
    with pytest.MonkeyPatch.context() as patch, open(near) as reader, open(os.dup(near), "w") as writer:
        patch.setattr(sys, "stdin", reader)
        patch.setattr(sys, "stdout", writer)
        yield far
    os.close(far)


def read_until(far: int, end: str) -> str:
    """Returns what is written to a terminal, until something is; fails when nothing comes for long."""
    written = b""
    while end.encode() not in written:
        assert select.select([far], [], [], LIMIT_S)[0], f"nothing more came after {written!r}"
        written += os.read(far, 1 << 16)
    return written.decode()


def test_q_leaves_and_gives_the_screen_back(stub: Stub) -> None:
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(top.top(OPTIONS)), daemon=True)
    with terminal() as far:
        thread.start()
        shown = read_until(far, "q: quit")
        assert shown.startswith(top._ENTER) and "job-4  running" in shown and stub.asked == 1
        os.write(far, b"q")
        read_until(far, top._LEAVE)
        thread.join(LIMIT_S)
    assert ended == [0]


def test_without_a_web_framework_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fdt.pool.page.app", None)
    with pytest.raises(UsageError, match=r"pip install 'fdt\[page\]'"):
        server._page("127.0.0.1:0", None, DEFAULT, AuditLog(None))  # type: ignore[arg-type]


def test_a_pool_has_no_page_unless_asked() -> None:
    assert ServeConfig().page is None and server.Server(ServeConfig(), {}).link == ""
