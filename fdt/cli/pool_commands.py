"""Implements the commands that ask a running pool, or a detached run: `fdt jobs`, `logs`, `cancel`, `page`, `attach`."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence

import grpc

from fdt.base.config import Timing
from fdt.base.printable import LogFilter, printable, printable_lines
from fdt.cli import detached
from fdt.cli.options import Attach, Cancel, Jobs, Logs, OfRunningPool, Page
from fdt.cli.settings import credentials
from fdt.errors import PoolUnreachableError, UsageError
from fdt.transport import rpc, statuses
from fdt.v1 import pool_pb2, pool_pb2_grpc


def connect(options: OfRunningPool) -> grpc.Channel:
    """Connects to the pool that the options name.

    Raises:
        FdtError: There is no such pool, or it does not accept the credentials; see `fdt.transport.rpc.connect`.
    """
    return rpc.connect(options.server, credentials(options, options.server), Timing())


def jobs(options: Jobs) -> int:
    """Prints a table of the detached runs and of the pool's jobs; returns the exit status."""
    found = [_summary(run) for run in detached.runs()]
    try:
        with connect(options) as channel, statuses.translated():
            found += pool_pb2_grpc.PoolStub(channel).ListJobs(pool_pb2.ListJobsRequest(), timeout=Timing().call_s).jobs
    except PoolUnreachableError as error:
        if not found:
            raise
        print(f"fdt: {printable_lines(str(error))}", file=sys.stderr, flush=True)
    with _reader_may_leave():
        print("\n".join(format_jobs(found, time.time())) if found else "no jobs")
    return 0


def _summary(run: detached.Run) -> pool_pb2.JobSummary:
    (state, reason), about, status = run.state, run.about, run.status
    return pool_pb2.JobSummary(
        job=run.name,
        state=state,
        script=about.script,
        mode=about.mode,
        num_workers=about.num_workers,
        submitted_s=about.started_s,
        ended_s=status.ended_s if status is not None else 0.0,
        reason=reason,
    )


def format_jobs(found: Sequence[pool_pb2.JobSummary], now_s: float) -> list[str]:
    """Returns the lines of a table of jobs, one line each below a heading.

    Args:
        found: The jobs, in the order of the table.
        now_s: The time in seconds since the epoch, for jobs that have not ended.
    """
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "MODE", "WORKERS", "STEPS", "TIME", "OWNER", "SCRIPT", "REASON")]
    for job in found:
        lasted = duration(max(0.0, (job.ended_s or now_s) - job.submitted_s))
        numbers = (str(job.num_workers), f"{job.steps:,}", lasted)
        texts = (job.job, job.state, job.mode, job.owner or "-", job.script, job.reason)
        # Collapses white space: a script's name or a reason may contain line breaks.
        shown = [printable(" ".join(text.split())) for text in texts]
        rows.append((*shown[:3], *numbers, *shown[3:]))
    return aligned(with_owners(rows), right=(3, 4, 5))


def with_owners(rows: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
    """Removes a table's column OWNER if no job has an owner, as in a pool with one token for all clients."""
    column = rows[0].index("OWNER")
    if any(row[column] != "-" for row in rows[1:]):
        return rows
    return [row[:column] + row[column + 1 :] for row in rows]


def aligned(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Returns rows as lines with aligned columns.

    Args:
        rows: At least one row, all with the same number of cells.
        right: The columns that are aligned to the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_align(cell, widths[i], right=i in right) for i, cell in enumerate(r)).rstrip() for r in rows]


def _align(text: str, width: int, *, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def duration(seconds: float) -> str:
    """Returns a time as text, such as "3m 05s"."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest_s:02}s" if minutes else f"{rest_s}s"


def logs(options: Logs) -> int:
    """Prints the output of a detached run, or of a job's workers; returns the exit status."""
    if options.job.startswith(detached.PREFIX):
        with _reader_may_leave():
            return detached.show(detached.find(options.job), None, follow=False)
    with connect(options) as channel, statuses.translated():
        request = pool_pb2.GetLogsRequest(job=options.job)
        with _reader_may_leave():
            chunks = pool_pb2_grpc.PoolStub(channel).GetLogs(request, timeout=10 * Timing().chunk_s)
            _show(chunk.text for chunk in chunks)
    return 0


def _show(pieces: Iterable[bytes]) -> None:
    """Writes a log; removes control sequences if it goes to a terminal."""
    if not sys.stdout.isatty():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    shown = LogFilter()
    for piece in pieces:
        sys.stdout.write(shown.feed(piece))
    # Resets the colour in which the log may end.
    sys.stdout.write(shown.feed(b"", last=True) + "\x1b[0m")


def cancel(options: Cancel) -> int:
    """Cancels a detached run or a job, and prints its state; returns the exit status."""
    if options.job.startswith(detached.PREFIX):
        state = detached.find(options.job).cancel()
    else:
        with connect(options) as channel, statuses.translated():
            stub = pool_pb2_grpc.PoolStub(channel)
            state = stub.CancelJob(pool_pb2.CancelJobRequest(job=options.job), timeout=Timing().call_s).state
    print(f"{printable(options.job)}: {printable(state)}")
    return 0


def page(options: Page) -> int:
    """Prints a link to the pool's page; returns the exit status."""
    with connect(options) as channel, statuses.translated():
        reply = pool_pb2_grpc.PoolStub(channel).OpenPage(pool_pb2.OpenPageRequest(), timeout=Timing().call_s)
    if not reply.link:
        raise UsageError(f"the pool at {options.server} has no page: serve it with --page 127.0.0.1:8080")
    print(printable(reply.link))
    return 0


def attach(options: Attach) -> int:
    """Prints the output of a detached run until it ends; returns the script's exit status."""
    run = detached.find(options.job)
    try:
        with _reader_may_leave():
            return detached.show(run, options.tail, follow=True)
    except KeyboardInterrupt:
        line = f"{run.name} goes on: `fdt attach {run.name}` shows it again, `fdt cancel {run.name}` ends it"
        print(f"\nfdt: {line}", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
    return 0


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Ignores that the reader of a pipe closes it early, as in `fdt logs JOB | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the rest of the buffer at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
