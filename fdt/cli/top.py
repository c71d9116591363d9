"""Shows a pool's jobs and hosts on a terminal and redraws them (`fdt top`); without a terminal, prints them once."""

import contextlib
import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fdt.base.config import Timing
from fdt.base.printable import printable
from fdt.cli.options import Top
from fdt.cli.pool_commands import aligned, connect, duration, with_owners
from fdt.errors import ProtocolError
from fdt.transport import statuses
from fdt.v1 import pool_pb2, pool_pb2_grpc

# The least interval: people read no faster, and each request costs the pool time.
_LEAST_S = 0.5
# Enter the alternate screen and hide the cursor, and undo both; home; clear the rest of the line; clear the rest of the screen.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_ENDED = ("finished", "failed", "cancelled", "interrupted")


def top(options: Top) -> int:
    """Runs `fdt top`; returns the exit status."""
    with connect(options) as channel:
        stub = pool_pb2_grpc.PoolStub(channel)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print("\n".join(screen(_look(stub, options.server))))
            return 0
        with _own_screen():
            _repeat(stub, options.server, max(_LEAST_S, options.interval))
    return 0


def _look(stub: pool_pb2_grpc.PoolStub, address: str) -> dict[str, Any]:
    with statuses.translated(address):
        reply = stub.View(pool_pb2.ViewRequest(), timeout=Timing().call_s)
    try:
        found = json.loads(reply.view)
    except ValueError as error:
        raise ProtocolError(
            f"The pool at {address} sent no view that can be read: {error}. Is it of another version?"
        ) from error
    return dict(found)


def _repeat(stub: pool_pb2_grpc.PoolStub, address: str, interval_s: float) -> None:
    """Shows the pool until the user types q."""
    while True:
        size = shutil.get_terminal_size()
        lines = screen(_look(stub, address), size.lines - 1)
        shown = [printable(line[: size.columns - 1]) for line in [*lines, "q: quit"][: size.lines]]
        # Lines in capitals are headings.
        styled = [f"{_BOLD}{line}{_PLAIN}" if line.isupper() else line for line in shown]
        sys.stdout.write(_HOME + "\n".join(f"{line}{_REST_OF_LINE}" for line in styled) + _REST)
        sys.stdout.flush()
        if _quits(interval_s):
            return


def _quits(limit_s: float) -> bool:
    """Waits at most `limit_s`; returns whether the user typed q, or standard input was closed."""
    end_s = time.monotonic() + limit_s
    while (left_s := end_s - time.monotonic()) > 0:
        if not select.select([sys.stdin], [], [], left_s)[0]:
            return False
        typed = os.read(sys.stdin.fileno(), 64)
        if not typed or typed.lower()[:1] == b"q":
            return True
    return False


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    """Switches to the alternate screen, without line buffering and echo of input; Ctrl-C still interrupts."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def screen(shown: Mapping[str, Any], height: int | None = None) -> list[str]:
    """Returns the lines that show a pool.

    Args:
        shown: The result of `fdt.pool.view.overview`.
        height: The most lines; None for no bound. Of jobs that do not fit, only the number is shown.
    """
    jobs, hosts = shown["jobs"], shown["hosts"]
    number = {state: sum(job["state"] == state for job in jobs) for state in ("queued", "running")}
    busy, slots = (sum(host[name] for host in hosts) for name in ("busy", "slots"))
    lines = [
        f"{busy} of {slots} workers busy, {number['running']} job(s) running, {number['queued']} queued, {len(jobs)} known",
        "",
        *_hosts(hosts),
        "",
    ]
    ordered = _ordered(jobs)
    fitting = len(ordered) if height is None else max(0, height - len(lines) - 2)
    lines += _jobs(ordered[:fitting], shown["time_s"]) if jobs else ["no jobs"]
    if len(ordered) > fitting:
        lines.append(f"and {len(ordered) - fitting} more")
    return lines


def _ordered(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns running jobs, then queued ones, then ended ones, the newest first."""
    groups: tuple[list[Mapping[str, Any]], ...] = ([], [], [])
    for job in jobs:
        groups[2 if job["state"] in _ENDED else 1 if job["state"] == "queued" else 0].append(job)
    return [*groups[0], *groups[1], *reversed(groups[2])]


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("HOST", "WORKERS", "CORES", "MEMORY", "SENT", "RECEIVED", "GPUS")]
    for host in hosts:
        gpus = " ".join(f"{100 * gpu['utilization']:.0f}%" for gpu in host["gpus"]) or "-"
        rows.append(
            (
                _one_line(host["name"]),
                f"{host['busy']}/{host['slots']}",
                f"{host['cores']:.1f}/{host['num_cores']}",
                _size(host["memory_bytes"]),
                f"{_size(host['sent_s'])}/s",
                f"{_size(host['received_s'])}/s",
                gpus,
            )
        )
    return aligned(rows, right=range(1, 6))


def _jobs(jobs: Sequence[Mapping[str, Any]], now_s: float) -> list[str]:
    rows = [("JOB", "STATE", "MODE", "WORKERS", "STEPS", "STEPS/S", "TIME", "FAULTS", "OWNER", "SCRIPT")]
    for job in jobs:
        rows.append(
            (
                _one_line(job["name"]),
                _one_line(job["state"]),
                _one_line(job["mode"]),
                str(job["workers"]),
                f"{job['steps']:,}",
                f"{job['rate']:.1f}" if job["rate"] else "-",
                duration(max(0.0, (job["ended_s"] or now_s) - job["submitted_s"])),
                str(job["faults"] or "-"),
                _one_line(job["owner"]) or "-",
                _one_line(job["script"]),
            )
        )
    return aligned(with_owners(rows), right=range(3, 8))


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
