"""Keeps what a pool has measured of its workers, hosts and jobs: the newest samples and accounts, and curves."""

import collections
import dataclasses
import math
import threading
from collections.abc import Container, Iterable, Mapping, Sequence

from fdt.base.limits import cut
from fdt.pool.curves import MAX_NAMES, Curve
from fdt.v1 import job_pb2

# Least seconds between two rows of the curve that a client sends.
_SHOWN_S = 0.4
_NAME_BYTES = 64
# A job's rate is taken over this many observations.
_RATE_LOOKS = 6


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that a host's interfaces, loopback included, have sent and received.

    Attributes:
        time_s: The time of the newest sample, since the epoch.
        sent_bytes: Bytes sent in all.
        received_bytes: Bytes received in all.
        sent_s: Recently sent bytes a second.
        received_s: Recently received bytes a second.
    """

    time_s: float
    sent_bytes: int
    received_bytes: int
    sent_s: float = 0.0
    received_s: float = 0.0


class JobCurves:
    """The curves of one job.

    Attributes:
        steps: The number of steps done.
        spent: Total seconds of all workers so far: "compute", "exchange", "wait".
        shown: The numbers that the script was shown, by name.
    """

    def __init__(self) -> None:
        self.steps, self.spent, self.shown = Curve(), Curve(), Curve()
        self.shown_s = 0.0
        self.recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=_RATE_LOOKS)

    def rate(self) -> float:
        """Returns the recent number of steps a second."""
        if len(self.recent) < 2:
            return 0.0
        (began_s, before), (ended_s, after) = self.recent[0], self.recent[-1]
        return (after - before) / max(1e-9, ended_s - began_s)

    def copy(self) -> "JobCurves":
        """Returns a copy, for another thread to read."""
        other = JobCurves()
        other.steps, other.spent, other.shown = self.steps.copy(), self.spent.copy(), self.shown.copy()
        return other


class Observations:
    """The observations of one pool; its methods may be called from any thread.

    Attributes:
        samples: Each worker's newest sample.
        accounts: For each job, its workers' accounts at the last two full synchronisations, the earlier one first.
        traffic: Each host's traffic, by its label.
    """

    def __init__(self, account_bytes: int) -> None:
        """Begins without observations.

        Args:
            account_bytes: The most bytes of one sample or of a worker's account; a larger one is not kept.
        """
        self._account_bytes = account_bytes
        self.samples: dict[str, job_pb2.Sample] = {}
        self.accounts: dict[str, tuple[Sequence[job_pb2.WorkerUsage], Sequence[job_pb2.WorkerUsage]]] = {}
        self.traffic: dict[str, Traffic] = {}
        self._curves: dict[str, JobCurves] = {}
        self._lock = threading.Lock()

    def sampled(self, worker: str, host: str, sample: job_pb2.Sample) -> None:
        """Records a worker's sample, which includes the counters of its host's interfaces."""
        if sample.ByteSize() > self._account_bytes:
            return
        with self._lock:
            self.samples[worker] = sample
            self._moved(host, sample)

    def _moved(self, host: str, sample: job_pb2.Sample) -> None:
        before = self.traffic.get(host)
        elapsed_s = math.inf if before is None else sample.time_s - before.time_s
        # Every worker of a host sends the same counters.
        if before is not None and elapsed_s < 0.5:
            return
        first = before or Traffic(0.0, sample.sent_bytes, sample.received_bytes)
        moved = (sample.sent_bytes - first.sent_bytes, sample.received_bytes - first.received_bytes)
        rates = (max(0.0, number / elapsed_s) for number in moved)
        self.traffic[host] = Traffic(sample.time_s, sample.sent_bytes, sample.received_bytes, *rates)

    def accounted(self, job: str, usage: Sequence[job_pb2.WorkerUsage], time_s: float) -> None:
        """Records the accounts of a job's workers."""
        if sum(each.ByteSize() for each in usage) > self._account_bytes * len(usage):
            return
        spent = {name: sum(getattr(u, f"{name}_s") for u in usage) for name in ("compute", "exchange", "wait")}
        with self._lock:
            before = self.accounts[job][1] if job in self.accounts else []
            self.accounts[job] = before, list(usage)
            self._of(job).spent.add(time_s, spent)

    def shown(self, job: str, values: Mapping[str, float], time_s: float) -> None:
        """Records numbers that a script was shown, unless less than `_SHOWN_S` has passed since the last record."""
        with self._lock:
            curves = self._of(job)
            if time_s - curves.shown_s >= _SHOWN_S:
                curves.shown_s, kept = time_s, sorted(values.items())[:MAX_NAMES]
                curves.shown.add(time_s, {cut(name, _NAME_BYTES): value for name, value in kept})

    def counted(self, steps: Iterable[tuple[str, int]], time_s: float) -> None:
        """Records the running jobs' numbers of steps; called about once a second."""
        with self._lock:
            for job, done in steps:
                curves = self._of(job)
                curves.recent.append((time_s, done))
                curves.steps.add(time_s, {"steps": done})

    def curves(self, job: str) -> JobCurves:
        """Returns a copy of a job's curves."""
        with self._lock:
            return self._curves[job].copy() if job in self._curves else JobCurves()

    def rate(self, job: str) -> float:
        """Returns a job's recent number of steps a second; 0 if it was not observed while running."""
        with self._lock:
            return self._curves[job].rate() if job in self._curves else 0.0

    def _of(self, job: str) -> JobCurves:
        return self._curves.setdefault(job, JobCurves())

    def forget(self, jobs: Container[str], hosts: Container[str]) -> None:
        """Deletes the observations of all jobs that are not in `jobs`, and of all hosts whose labels are not in `hosts`."""
        with self._lock:
            self.accounts = {job: kept for job, kept in self.accounts.items() if job in jobs}
            self._curves = {job: kept for job, kept in self._curves.items() if job in jobs}
            self.traffic = {host: kept for host, kept in self.traffic.items() if host in hosts}
