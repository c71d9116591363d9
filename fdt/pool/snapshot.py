"""Copies the state of a pool at one moment, for the page, metrics and `fdt top`."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from fdt.pool.hosts import Host
from fdt.pool.observations import Observations, Traffic
from fdt.pool.state.entities import Host as Place
from fdt.pool.state.entities import Job, JobState
from fdt.pool.state.events import OWN_HOST
from fdt.pool.state.pool_state import PoolState
from fdt.v1 import job_pb2


@dataclasses.dataclass(frozen=True)
class WorkerSnapshot:
    """A worker process; `silent_s` is the time since its last message, and `host` is "" for the pool's own machine."""

    name: str
    host: str
    state: str
    job: str
    silent_s: float
    sample: job_pb2.Sample | None
    mode: str = ""
    rank: int = -1


@dataclasses.dataclass(frozen=True)
class JobSnapshot:
    """A job.

    Attributes:
        workers: The workers' accounts as of the last complete drain.
        before: Their accounts as of the complete drain before that.
        rate: The recent number of steps a second.
        lost: The earlier jobs of the same run, which this one replaces, and how each ended.
        num_processes: The number of its processes; each has, or had, a log.
        owner: The person who submitted it; "" for the operator.
    """

    name: str
    mode: str
    state: str
    steps: int
    workers: Sequence[job_pb2.WorkerUsage]
    before: Sequence[job_pb2.WorkerUsage] = ()
    script: str = ""
    num_workers: int = 0
    submitted_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    reason: str = ""
    rate: float = 0.0
    lost: tuple[tuple[str, str], ...] = ()
    num_processes: int = 0
    owner: str = ""


@dataclasses.dataclass(frozen=True)
class HostSnapshot:
    """A machine of the pool; `name` is "" for the pool's own, and `busy` the number of its workers that serve jobs."""

    name: str
    slots: int
    busy: int
    num_cores: int
    traffic: Traffic | None = None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The jobs, workers and hosts of a pool at one moment."""

    jobs: Sequence[JobSnapshot]
    workers: Sequence[WorkerSnapshot]
    hosts: Sequence[HostSnapshot] = ()


def take(
    state: PoolState,
    heard_s: Mapping[str, float],
    seen: Observations,
    hosts: Mapping[str, Host],
    host_of: Callable[[str], str],
    steps: Callable[[str], int],
) -> Snapshot:
    """Returns a snapshot of the pool as it is now.

    Args:
        state: All jobs, workers and hosts.
        heard_s: When each worker's last message came, by the monotonic clock.
        seen: The pool's observations.
        hosts: The hosts that `state` knows, by its names for them.
        host_of: Returns the label of a worker's host.
        steps: Returns a job's number of steps.
    """
    now_s = time.monotonic()
    workers = [
        WorkerSnapshot(
            worker.name,
            host_of(worker.name),
            worker.state.name.lower(),
            worker.job or "",
            now_s - heard_s[worker.name],
            seen.samples.get(worker.name),
            worker.mode,
            worker.rank,
        )
        for worker in state.workers.values()
        if worker.name in heard_s
    ]
    runs: dict[bytes, list[tuple[str, str]]] = {}
    jobs = [_of_job(job, steps(job.name), seen, runs) for job in state.jobs.values()]
    busy = state.jobs.busy()
    machines = [_of_host(state.hosts[name], busy[name], host, seen) for name, host in hosts.items()]
    return Snapshot(jobs, workers, machines)


def _of_host(place: Place, busy: int, host: Host, seen: Observations) -> HostSnapshot:
    name = "" if place.name == OWN_HOST else place.label
    return HostSnapshot(name, place.slots, busy, host.num_cores, seen.traffic.get(name))


def _of_job(job: Job, steps: int, seen: Observations, runs: dict[bytes, list[tuple[str, str]]]) -> JobSnapshot:
    """Returns a job's snapshot; `runs` holds the earlier jobs of each session, and this job is added to it."""
    run = runs.setdefault(job.session, []) if job.session else []
    before, workers = seen.accounts.get(job.name, ((), ()))
    reason = job.told[1] if job.state is JobState.QUEUED else job.reason
    lost = tuple(run)
    run.append((job.name, f"{job.state.value}: {reason}" if reason else job.state.value))
    return JobSnapshot(
        job.name,
        job.mode,
        job.state.value,
        steps,
        workers,
        before,
        job.script,
        job.num_workers,
        job.submitted_s,
        job.started_s,
        job.ended_s,
        reason,
        0.0 if job.state.ended else seen.rate(job.name),
        lost,
        len(job.workers),
        job.owner,
    )
