"""Finds what limits a job's speed, from its workers' recent accounts, and describes it in words. No I/O."""

from collections.abc import Sequence

from fdt.pool.snapshot import JobSnapshot
from fdt.v1 import job_pb2

# The share of the workers' time from which an activity is called the limit.
_MUCH = 0.35
# A worker is called slow if a step takes it this many times as long as the fastest worker.
_SLOW = 1.3

_NOT_YET = "Not known yet: workers tell where their time goes at each full synchronisation of the job."


def recent(job: JobSnapshot) -> list[job_pb2.WorkerUsage]:
    """Returns each worker's account for the time between the last two full synchronisations.

    If there was only one, the account is for the time since the job's start.
    """
    before = {usage.rank: usage for usage in job.before}
    found = []
    for usage in job.workers:
        first = before.get(usage.rank, job_pb2.WorkerUsage())
        spent = job_pb2.WorkerUsage(rank=usage.rank, peak_memory_bytes=usage.peak_memory_bytes)
        for name in ("steps", "samples", "exchanged_bytes", *SPENT):
            # A rank that was restarted counts from zero.
            setattr(spent, name, max(0, getattr(usage, name) - getattr(first, name)))
        found.append(spent)
    return found


SPENT = ("compute_s", "exchange_s", "wait_s", "pull_s", "push_s", "held_s")


def shares(usage: Sequence[job_pb2.WorkerUsage]) -> dict[str, float]:
    """Returns the share of the workers' time that each of `SPENT` took, by name; {} if they did nothing."""
    total = sum(each.compute_s + each.exchange_s + each.wait_s for each in usage)
    return {name: sum(getattr(each, name) for each in usage) / total for name in SPENT} if total > 0 else {}


def describe(job: JobSnapshot) -> str:
    """Returns in one or two sentences what limits a job, and the remedy; "" if it has ended without an account."""
    if job.state == "queued":
        return f"It waits: {job.reason}." if job.reason else "It waits for workers."
    if job.state == "starting":
        return "Its workers connect to each other."
    usage = recent(job)
    found = shares(usage)
    if not found:
        return _NOT_YET if job.state == "running" else ""
    slowest = _slowest(usage)
    if found["wait_s"] >= _MUCH:
        return _of_waiting(found)
    if found["exchange_s"] >= _MUCH:
        return _of_exchange(job.mode, found, usage, slowest)
    return _of_computation(found, slowest)


def _of_waiting(found: dict[str, float]) -> str:
    if found["held_s"] >= found["wait_s"] / 2:
        return (
            f"Slow workers: the others wait for them {_percent(found['held_s'])} of the time, so that none is too far ahead. "
            "A larger --max-delay holds them back less."
        )
    return (
        f"The script: workers wait {_percent(found['wait_s'])} of the time for its next batch. Its data or its own Python "
        "between two steps take longer than the step; more workers do not help."
    )


def _of_exchange(mode: str, found: dict[str, float], usage: Sequence[job_pb2.WorkerUsage], slowest: str) -> str:
    if mode == "sync" and slowest:
        return f"{slowest}, and the others wait for it in the exchange, {_percent(found['exchange_s'])} of all workers' time."
    steps = max(1, *(each.steps for each in usage)) if mode == "sync" else max(1, sum(each.steps for each in usage))
    megabytes = sum(each.exchanged_bytes for each in usage) / steps / 1e6
    if mode == "sync":
        return (
            f"The exchange of gradients: {_percent(found['exchange_s'])} of the workers' time, {megabytes:.1f} MB a step over "
            "all workers. A larger batch, fewer workers or --wire fp16 make it a smaller part."
        )
    return (
        f"The parameter servers: {_percent(found['pull_s'])} of the workers' time is pull, {_percent(found['push_s'])} push, "
        f"{megabytes:.1f} MB a step. More servers (--ps K), a larger batch or --wire fp16 make it a smaller part."
    )


def _of_computation(found: dict[str, float], slowest: str) -> str:
    line = (
        f"Computation: {_percent(found['compute_s'])} of the workers' time. More workers on other cores make it faster."
    )
    return f"{line} {slowest}." if slowest else line


def _slowest(usage: Sequence[job_pb2.WorkerUsage]) -> str:
    """Returns a sentence on the slowest worker if its steps take much longer than those of the fastest, otherwise ""."""
    each = sorted((u.compute_s / u.steps, u.rank) for u in usage if u.steps and u.compute_s)
    if len(each) < 2 or each[-1][0] < _SLOW * each[0][0]:
        return ""
    return f"Worker {each[-1][1]} computes {each[-1][0] / each[0][0]:.1f} times as long for a step as the fastest"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"
