"""What a pool has seen of its workers, hosts and jobs: the newest samples and accounts, and curves."""

import collections
import dataclasses
import math
import threading
from collections.abc import Container, Iterable, Mapping, Sequence

from fdt.base.limits import cut
from fdt.pool.curves import MAX_NAMES, Curve
from fdt.v1 import job_pb2

# Between two rows of a curve that a client brings.
_SHOWN_S = 0.4
_NAME_BYTES = 64
# Over so many looks a job's rate is taken.
_RATE_LOOKS = 6


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a host's interfaces moved, loopback included, and how much a second that was, of late."""

    time_s: float
    sent_bytes: int
    received_bytes: int
    sent_s: float = 0.0
    received_s: float = 0.0


class JobCurves:
    """What is kept of one job over time.

    Attributes:
        steps: The number of steps done.
        spent: Seconds of all workers together up to then: "compute", "exchange", "wait".
        shown: What the script was shown, by its names.
    """

    def __init__(self) -> None:
        self.steps, self.spent, self.shown = Curve(), Curve(), Curve()
        self.shown_s = 0.0
        self.recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=_RATE_LOOKS)

    def rate(self) -> float:
        """Returns steps a second of late."""
        if len(self.recent) < 2:
            return 0.0
        (began_s, before), (ended_s, after) = self.recent[0], self.recent[-1]
        return (after - before) / max(1e-9, ended_s - began_s)

    def copy(self) -> "JobCurves":
        """Returns the same, to be read by another thread."""
        other = JobCurves()
        other.steps, other.spent, other.shown = self.steps.copy(), self.spent.copy(), self.shown.copy()
        return other


class Observations:
    """Of one pool; any thread may tell it something, and look.

    Attributes:
        samples: The newest of each worker.
        accounts: Of each job, what its workers had done at the last full synchronisation and at the one before.
        traffic: Of each host, by its label.
    """

    def __init__(self, account_bytes: int) -> None:
        """Begins without any.

        Args:
            account_bytes: What one sample or a worker's account may take; a larger one is not kept.
        """
        self._account_bytes = account_bytes
        self.samples: dict[str, job_pb2.Sample] = {}
        self.accounts: dict[str, tuple[Sequence[job_pb2.WorkerUsage], Sequence[job_pb2.WorkerUsage]]] = {}
        self.traffic: dict[str, Traffic] = {}
        self._curves: dict[str, JobCurves] = {}
        self._lock = threading.Lock()

    def sampled(self, worker: str, host: str, sample: job_pb2.Sample) -> None:
        """Takes a worker's sample, which tells of its host's interfaces as well."""
        if sample.ByteSize() > self._account_bytes:
            return
        with self._lock:
            self.samples[worker] = sample
            self._moved(host, sample)

    def _moved(self, host: str, sample: job_pb2.Sample) -> None:
        before = self.traffic.get(host)
        elapsed_s = math.inf if before is None else sample.time_s - before.time_s
        # Every worker of a host brings the same counters.
        if before is not None and elapsed_s < 0.5:
            return
        first = before or Traffic(0.0, sample.sent_bytes, sample.received_bytes)
        moved = (sample.sent_bytes - first.sent_bytes, sample.received_bytes - first.received_bytes)
        rates = (max(0.0, number / elapsed_s) for number in moved)
        self.traffic[host] = Traffic(sample.time_s, sample.sent_bytes, sample.received_bytes, *rates)

    def accounted(self, job: str, usage: Sequence[job_pb2.WorkerUsage], time_s: float) -> None:
        """Takes what the workers of a job did so far."""
        if sum(each.ByteSize() for each in usage) > self._account_bytes * len(usage):
            return
        spent = {name: sum(getattr(u, f"{name}_s") for u in usage) for name in ("compute", "exchange", "wait")}
        with self._lock:
            before = self.accounts[job][1] if job in self.accounts else []
            self.accounts[job] = before, list(usage)
            self._of(job).spent.add(time_s, spent)

    def shown(self, job: str, values: Mapping[str, float], time_s: float) -> None:
        """Takes what a script was shown; more than two a second are left out."""
        with self._lock:
            curves = self._of(job)
            if time_s - curves.shown_s >= _SHOWN_S:
                curves.shown_s, kept = time_s, sorted(values.items())[:MAX_NAMES]
                curves.shown.add(time_s, {cut(name, _NAME_BYTES): value for name, value in kept})

    def counted(self, steps: Iterable[tuple[str, int]], time_s: float) -> None:
        """Takes how far jobs are that run; called about once a second."""
        with self._lock:
            for job, done in steps:
                curves = self._of(job)
                curves.recent.append((time_s, done))
                curves.steps.add(time_s, {"steps": done})

    def curves(self, job: str) -> JobCurves:
        """Returns what is kept of a job over time."""
        with self._lock:
            return self._curves[job].copy() if job in self._curves else JobCurves()

    def rate(self, job: str) -> float:
        """Returns a job's steps a second of late; 0 for one that was not seen to run."""
        with self._lock:
            return self._curves[job].rate() if job in self._curves else 0.0

    def _of(self, job: str) -> JobCurves:
        return self._curves.setdefault(job, JobCurves())

    def forget(self, jobs: Container[str], hosts: Container[str]) -> None:
        """Keeps what concerns these jobs and hosts, by their labels, alone."""
        with self._lock:
            self.accounts = {job: kept for job, kept in self.accounts.items() if job in jobs}
            self._curves = {job: kept for job, kept in self._curves.items() if job in jobs}
            self.traffic = {host: kept for host, kept in self.traffic.items() if host in hosts}
