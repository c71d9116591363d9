"""Makes the tables of the pool's page and `fdt top` from a snapshot, in JSON's types. No I/O."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fdt.base.limits import DEFAULT, cut
from fdt.base.usage import delay_summary
from fdt.pool import bottleneck
from fdt.pool.curves import Curve
from fdt.pool.observations import JobCurves
from fdt.pool.snapshot import HostSnapshot, JobSnapshot, Snapshot, WorkerSnapshot
from fdt.v1 import job_pb2

# A row of a table; `name` identifies it.
Row = dict[str, Any]
# Rows by name.
Tables = dict[str, dict[str, Row]]
TABLES = ("jobs", "workers", "hosts")

OWN_HOST = "this machine"


def overview(snapshot: Snapshot, time_s: float) -> dict[str, Any]:
    """Returns the tables of a pool.

    Args:
        snapshot: The pool's snapshot.
        time_s: Now, in seconds since the epoch.

    Returns:
        `time_s`, and under each of `TABLES` a list of rows, in the pool's order. Times in seconds, rates a second.
    """
    working = _by_host(snapshot.workers)
    return {
        "time_s": round(time_s, 1),
        "jobs": [_job(job) for job in snapshot.jobs],
        "workers": [_worker(worker) for worker in snapshot.workers],
        "hosts": [_host(host, working.get(host.name, [])) for host in snapshot.hosts],
    }


def tables(shown: Mapping[str, Any]) -> Tables:
    """Returns the rows of an overview by table and name."""
    return {table: {row["name"]: row for row in shown[table]} for table in TABLES}


def changes(before: Tables, after: Tables) -> dict[str, Any]:
    """Returns the differences: for each table the new and changed rows (`rows`), and the names of deleted ones (`gone`)."""
    found: dict[str, Any] = {}
    for table in TABLES:
        known, rows = before.get(table, {}), after[table]
        changed = [row for name, row in rows.items() if known.get(name) != row]
        gone = [name for name in known if name not in rows]
        if changed or gone:
            found[table] = {"rows": changed, "gone": gone}
    return found


def detail(job: JobSnapshot, curves: JobCurves) -> dict[str, Any]:
    """Returns all that is known of one job: its row, its workers' accounts, what limits it, and its curves."""
    recent = {usage.rank: usage for usage in bottleneck.recent(job)}
    return {
        **_job(job),
        "processes": job.num_processes,
        "bottleneck": bottleneck.describe(job),
        "lost": [{"name": name, "end": end} for name, end in job.lost],
        "accounts": [_account(usage, recent[usage.rank]) for usage in job.workers],
        "shown": columns(curves.shown),
        "rate_curve": rates(curves.steps),
        "time_curve": parts(curves.spent),
    }


def columns(curve: Curve) -> dict[str, Any]:
    """Returns a curve as `times`, and under `series` its numbers by name; None for a missing number."""
    series = {name: [_number(value) for value in column] for name, column in curve.columns.items()}
    return {"times": [round(time_s, 1) for time_s in curve.times_s], "series": series}


def rates(steps: Curve) -> dict[str, Any]:
    """Returns the steps a second between neighbouring points of a curve of totals."""
    times, totals = steps.times_s, steps.columns.get("steps", ())
    return {
        "times": [round(time_s, 1) for time_s in times[1:]],
        "series": {"steps/s": [_number(each) for each in _slopes(times, totals)]},
    }


def parts(spent: Curve) -> dict[str, Any]:
    """Returns the share of the workers' time, 0 to 1, that each activity took between neighbouring points of totals."""
    times = spent.times_s
    taken = {name: _steps_between(column) for name, column in spent.columns.items()}
    sums = [sum(each) for each in zip(*taken.values(), strict=True)]
    series = {
        name: [_number(part / total) if total > 0 else None for part, total in zip(each, sums, strict=True)]
        for name, each in taken.items()
    }
    return {"times": [round(time_s, 1) for time_s in times[1:]], "series": series}


def _steps_between(column: Sequence[float]) -> list[float]:
    return [max(0.0, after - before) for before, after in itertools.pairwise(column)]


def _slopes(times: Sequence[float], totals: Sequence[float]) -> list[float]:
    elapsed = _steps_between(times)
    return [made / max(1e-9, took_s) for made, took_s in zip(_steps_between(totals), elapsed, strict=True)]


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _job(job: JobSnapshot) -> Row:
    return {
        "name": job.name,
        "owner": job.owner,
        "state": job.state,
        "mode": job.mode,
        "workers": job.num_workers,
        "script": cut(job.script, DEFAULT.listed_bytes),
        "steps": job.steps,
        "rate": _number(job.rate),
        "submitted_s": round(job.submitted_s, 1),
        "started_s": round(job.started_s, 1),
        "ended_s": round(job.ended_s, 1),
        "reason": cut(job.reason, DEFAULT.listed_bytes),
        "faults": len(job.lost),
    }


def _worker(worker: WorkerSnapshot) -> Row:
    sample = worker.sample or job_pb2.Sample()
    return {
        "name": worker.name,
        "host": worker.host or OWN_HOST,
        "state": worker.state,
        "mode": worker.mode,
        "job": worker.job,
        "rank": worker.rank if worker.job else None,
        "cores": round(sample.cores, 1),
        "memory_bytes": _rounded(sample.memory_bytes),
        # Shorter silences are not shown: otherwise each heartbeat would be a change.
        "silent_s": round(worker.silent_s) if worker.silent_s >= 3 else 0,
    }


def _host(host: HostSnapshot, workers: Sequence[WorkerSnapshot]) -> Row:
    samples = [worker.sample for worker in workers if worker.sample is not None]
    newest = max(samples, key=lambda sample: sample.time_s, default=job_pb2.Sample())
    return {
        "name": host.name or OWN_HOST,
        "slots": host.slots,
        "busy": host.busy,
        "num_cores": host.num_cores,
        "cores": round(sum(sample.cores for sample in samples), 1),
        "memory_bytes": _rounded(sum(sample.memory_bytes for sample in samples)),
        "sent_s": _rounded(host.traffic.sent_s) if host.traffic else 0,
        "received_s": _rounded(host.traffic.received_s) if host.traffic else 0,
        "gpus": [
            {"index": g.index, "utilization": round(g.utilization, 2), "memory_bytes": g.memory_bytes}
            for g in newest.gpus
        ],
    }


def _rounded(size: float) -> int:
    """Returns a number of bytes rounded to three digits, so that browsers are not sent each small change."""
    return int(float(f"{size:.3g}"))


def _account(usage: job_pb2.WorkerUsage, recent: job_pb2.WorkerUsage) -> Row:
    delays = delay_summary(dict(usage.delays)) if usage.delays else None
    return {
        "rank": usage.rank,
        "steps": usage.steps,
        "samples": usage.samples,
        "shares": {name: _number(part) for name, part in bottleneck.shares([recent]).items()},
        **{name: round(getattr(usage, name), 3) for name in bottleneck.SPENT},
        "exchanged_bytes": usage.exchanged_bytes,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "delays": delays,
    }


def _by_host(workers: Sequence[WorkerSnapshot]) -> dict[str, list[WorkerSnapshot]]:
    found: dict[str, list[WorkerSnapshot]] = {}
    for worker in workers:
        found.setdefault(worker.host, []).append(worker)
    return found
