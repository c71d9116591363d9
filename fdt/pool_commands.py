"""`fdt jobs`, `fdt logs` and `fdt cancel`: what a person asks of a pool."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import grpc

from fdt import rpc
from fdt.config import Timing
from fdt.printable import LogFilter, printable
from fdt.settings import credentials
from protos import pool_pb2, pool_pb2_grpc


def connect(options: argparse.Namespace) -> grpc.Channel:
    """Connects to the pool that the options name.

    Raises:
        FdtError: There is none, or it does not accept the credentials; see `fdt.rpc.connect`.
    """
    return rpc.connect(options.server, credentials(options, options.server), Timing())


def jobs(options: argparse.Namespace) -> int:
    """`fdt jobs`."""
    with connect(options) as channel, rpc.translated():
        reply = pool_pb2_grpc.PoolStub(channel).ListJobs(pool_pb2.ListJobsRequest(), timeout=Timing().call_s)
    with _reader_may_leave():
        print("\n".join(format_jobs(reply.jobs, time.time())) if reply.jobs else "no jobs")
    return 0


def format_jobs(found: Sequence[pool_pb2.JobSummary], now_s: float) -> list[str]:
    """Lays jobs out as a table, one line each below a heading.

    Args:
        found: In the order in which to show them.
        now_s: Seconds since the epoch, for jobs that have not ended.
    """
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "MODE", "WORKERS", "STEPS", "TIME", "SCRIPT", "REASON")]
    for job in found:
        lasted = _duration(max(0.0, (job.ended_s or now_s) - job.submitted_s))
        numbers = (str(job.num_workers), f"{job.steps:,}", lasted)
        # One line each, whatever a script's name or a reason holds.
        texts = [printable(" ".join(text.split())) for text in (job.job, job.state, job.mode, job.script, job.reason)]
        rows.append((*texts[:3], *numbers, *texts[3:]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_align(cell, widths[i], right=i in (3, 4, 5)) for i, cell in enumerate(r)).rstrip() for r in rows]


def _align(text: str, width: int, *, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest_s:02}s" if minutes else f"{rest_s}s"


def logs(options: argparse.Namespace) -> int:
    """`fdt logs`."""
    with connect(options) as channel, rpc.translated():
        request = pool_pb2.GetLogsRequest(job=options.job)
        with _reader_may_leave():
            chunks = pool_pb2_grpc.PoolStub(channel).GetLogs(request, timeout=10 * Timing().chunk_s)
            _show(chunk.text for chunk in chunks)
    return 0


def _show(pieces: Iterable[bytes]) -> None:
    """Writes a log: to a terminal what cannot steer it, else each byte as it is."""
    if not sys.stdout.isatty():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    shown = LogFilter()
    for piece in pieces:
        sys.stdout.write(shown.feed(piece))
    # Whatever colour the log ends in.
    sys.stdout.write(shown.feed(b"", last=True) + "\x1b[0m")


def cancel(options: argparse.Namespace) -> int:
    """`fdt cancel`."""
    with connect(options) as channel, rpc.translated():
        stub = pool_pb2_grpc.PoolStub(channel)
        reply = stub.CancelJob(pool_pb2.CancelJobRequest(job=options.job), timeout=Timing().call_s)
    print(f"{printable(options.job)}: {printable(reply.state)}")
    return 0


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """`fdt logs JOB | head`: it is no error when whoever reads has read enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer needs a place to go when python flushes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
