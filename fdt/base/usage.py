"""Adds and subtracts workers' accounts of a job: steps, seconds, bytes, delays."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdt.v1 import job_pb2

# The fields of an account that are sums over steps.
_ADDED = (
    *("steps", "samples", "compute_s", "exchange_s", "wait_s", "exchanged_bytes", "pull_s", "push_s", "held_s"),
    *("correction_sum", "num_corrected"),
)


def added(before: Sequence[job_pb2.WorkerUsage], since: Sequence[job_pb2.WorkerUsage]) -> list[job_pb2.WorkerUsage]:
    """Adds up the accounts of a run's two jobs, by rank."""
    known = {usage.rank: usage for usage in before}
    total = []
    for usage in since:
        first, both = known.pop(usage.rank, None), job_pb2.WorkerUsage()
        both.CopyFrom(usage)
        if first is not None:
            for name in _ADDED:
                setattr(both, name, getattr(first, name) + getattr(usage, name))
            for delay, count in first.delays.items():
                both.delays[delay] += count
            both.peak_memory_bytes = max(first.peak_memory_bytes, usage.peak_memory_bytes)
        total.append(both)
    return [*total, *known.values()]


def usage_since(before: list[job_pb2.WorkerUsage], after: list[job_pb2.WorkerUsage]) -> list[dict[str, Any]]:
    """Returns each worker's account between two times, in the report's format."""
    start = {usage.rank: usage for usage in before}
    accounts = []
    # A worker that took no batch has no delays, but is listed like the others.
    asynchronous = any(usage.delays for usage in after)
    for usage in sorted(after, key=lambda u: u.rank):
        first = start.get(usage.rank, job_pb2.WorkerUsage())
        account: dict[str, Any] = {"rank": usage.rank}
        for name in ("steps", "samples", "compute_s", "exchange_s", "wait_s", "exchanged_bytes"):
            account[name] = round(getattr(usage, name) - getattr(first, name), 6)
        account["peak_memory_bytes"] = usage.peak_memory_bytes
        if usage.divided:
            known = {(step.program, step.rows, step.seconds) for step in first.divided}
            steps = (step for step in usage.divided if (step.program, step.rows, step.seconds) not in known)
            account["divided"] = [_divided(step) for step in steps]
        if asynchronous:
            account |= _asynchronous(first, usage)
        accounts.append(account)
    return accounts


def _divided(step: job_pb2.DividedStep) -> dict[str, Any]:
    return {
        "rows": step.rows,
        "serves_other_sizes": step.serves_other_sizes,
        "seconds": round(step.seconds, 3),
        "arithmetic_divided": round(step.arithmetic_divided, 4),
        "exchanges": step.exchanges,
        "exchanged_bytes": step.exchanged_bytes,
        "computed_whole": dict(sorted(step.computed_whole.items())),
        "variables": {
            "in_parts": step.state.in_parts,
            "of": step.state.variables,
            "part_bytes": step.state.part_bytes,
            "all_bytes": step.state.all_bytes,
            "worker_bytes": step.state.worker_bytes,
        },
    }


def _asynchronous(first: job_pb2.WorkerUsage, usage: job_pb2.WorkerUsage) -> dict[str, Any]:
    account: dict[str, Any] = {
        name: round(getattr(usage, name) - getattr(first, name), 6) for name in ("pull_s", "push_s", "held_s")
    }
    counts = {delay: count - first.delays.get(delay, 0) for delay, count in sorted(usage.delays.items())}
    account["delays"] = {str(delay): count for delay, count in counts.items() if count}
    pushes = usage.num_corrected - first.num_corrected
    account["corrected"] = pushes
    account["correction"] = round((usage.correction_sum - first.correction_sum) / pushes, 6) if pushes else 0.0
    return account


def delay_summary(histogram: Mapping[int, int]) -> dict[str, float]:
    """Returns mean, 95th percentile and maximum of delays.

    Args:
        histogram: How often each delay occurred; not empty.
    """
    total = sum(histogram.values())
    mean = sum(delay * count for delay, count in histogram.items()) / total
    seen, p95 = 0, 0
    for delay, count in sorted(histogram.items()):
        seen, p95 = seen + count, delay
        if seen >= 0.95 * total:
            break
    return {"mean": round(mean, 4), "p95": p95, "max": max(histogram)}
