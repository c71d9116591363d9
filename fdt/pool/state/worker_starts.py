"""Starts a pool's worker processes, and gives up if they keep failing. No I/O: part of the pool's state.

A worker is healthy when it has joined a job, or has waited for one so long that its silence would have been noticed. A worker
that ends earlier has failed, ready or not.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from fdt.base.config import Timing
from fdt.pool.state import entities, events
from fdt.pool.state.entities import Host, Worker, WorkerState
from fdt.pool.state.events import OWN_HOST
from fdt.pool.state.host_table import HostTable
from fdt.pool.state.job_table import JobTable, Tell
from fdt.pool.state.worker_table import WorkerTable

# After this many failures in a row of a mode's workers, no more are started, and queued jobs fail.
MAX_FAILED_STARTS = 3

# Returns the number of processes for a number of a job's workers on one host.
Processes = Callable[[int], int]


@dataclasses.dataclass
class _Record:
    """The recent failures of workers of one mode on one host.

    Attributes:
        num_failed: Failures in a row.
        failed_s: When the last worker failed.
        ready: Whether a worker has been ready since then.
    """

    num_failed: int = 0
    failed_s: float = -math.inf
    ready: bool = False


class WorkerStarts:
    """Keeps as many processes of each mode as jobs on a host can use."""

    def __init__(
        self,
        modes: Mapping[str, Processes],
        max_jobs: int | None,
        timing: Timing,
        hosts: HostTable,
        jobs: JobTable,
        workers: WorkerTable,
        tell: Tell,
    ) -> None:
        """
        Args:
            modes: The modes that the pool serves, and how many processes a job of each takes.
            max_jobs: The most jobs that will run at once; None for as many as there are workers.
            timing: `warm_s` and `heartbeat_limit_s` are used.
            hosts: The pool's.
            jobs: The pool's.
            workers: The pool's.
            tell: Takes instructions.
        """
        self._modes, self._max_jobs, self._warm_s = modes, max_jobs, timing.warm_s
        # A worker that has waited this long is not silent, or its silence would have been noticed.
        self._proof_s = 2 * timing.heartbeat_limit_s
        self._hosts, self._jobs, self._workers, self._tell = hosts, jobs, workers, tell
        # Records by host and mode.
        self._records: dict[tuple[str, str], _Record] = {}
        # When each worker that waits for its first job counts as healthy; the earliest first.
        self._unproven: dict[str, float] = {}
        # Hosts for which `HostWorks` was sent.
        self._work: set[str] = set()
        self._num_started = 0

    def start(self, time_s: float) -> None:
        """Starts the missing processes."""
        # The pool's own machine each time: queued jobs may need more processes there.
        for name in dict.fromkeys([OWN_HOST, *self._workers.changed()]):
            for mode in self._modes:
                if name in self._hosts:
                    self._start_on(self._hosts[name], mode, time_s)
                else:
                    self._records.pop((name, mode), None)
                    self._work.discard(name)

    def _record(self, host: str, mode: str) -> _Record:
        return self._records.setdefault((host, mode), _Record())

    def _start_on(self, host: Host, mode: str, time_s: float) -> None:
        if self._record(host.name, mode).num_failed >= MAX_FAILED_STARTS:
            return
        here = sum(worker.state is not WorkerState.LEAVING for worker in self._workers.on(host.name, mode))
        # The most processes that all jobs at once can use.
        max_jobs = host.slots if self._max_jobs is None else self._max_jobs
        wanted = min(host.slots, max_jobs * self._modes[mode](host.slots)) if host.slots else 0
        if host.name == OWN_HOST:
            # Processes besides the workers, started only for jobs that need one, which are few.
            wanted += sum(job.needs_pool for job in self._jobs.unended() if job.mode == mode)
        for _ in range(wanted - here):
            self._num_started += 1
            name = f"{mode}-{self._num_started}"
            self._workers[name] = Worker(name, mode, time_s, host.name)
            self._tell(events.StartWorker(name, mode, host.name))

    def retry(self, mode: str) -> None:
        """Allows starts on the pool's own machine again: the user who submits a job again may have fixed the cause."""
        record = self._record(OWN_HOST, mode)
        if record.num_failed >= MAX_FAILED_STARTS:
            record.num_failed = 0

    def ready(self, event: events.WorkerReady) -> None:
        """Records that a worker waits for a job."""
        worker = self._workers.get(event.worker)
        if worker is not None and worker.state is WorkerState.STARTING:
            self._workers.ready(worker, event.time_s)
            self._record(worker.host, worker.mode).ready = True
            self._unproven[worker.name] = event.time_s + self._proof_s

    def joined(self, event: events.WorkerJoined) -> None:
        """Records that a worker has joined a job."""
        if event.worker in self._workers:
            self._proven(self._workers[event.worker])

    def _proven(self, worker: Worker) -> None:
        self._unproven.pop(worker.name, None)
        self._record(worker.host, worker.mode).num_failed = 0
        works = all(self._record(worker.host, mode).ready for mode in self._modes)
        if works and self._hosts[worker.host].placed and worker.host not in self._work:
            self._work.add(worker.host)
            self._tell(events.HostWorks(worker.host))

    def exited(self, event: events.WorkerExited) -> None:
        """Deletes a worker whose process has ended."""
        worker = self._workers.pop(event.worker, None)
        if worker is not None:
            self._failed(worker, f"ended with {entities.describe_status(event.status)}", event.time_s, event.detail)

    def silent(self, event: events.WorkerSilent) -> None:
        """Ends a worker that serves no job and has fallen silent."""
        worker = self._workers.get(event.worker)
        if worker is not None and worker.state in (WorkerState.STARTING, WorkerState.WARM):
            self._end(worker, f"stopped answering: nothing was heard from it for {event.silent_s:.0f} s", event.time_s)

    def _end(self, worker: Worker, what: str, time_s: float) -> None:
        self._tell(events.KillWorker(worker.name))
        self._failed(worker, what, time_s)
        if worker.name in self._workers:
            # If the worker is no longer there, this failure has dropped its host.
            self._workers.leave(worker, time_s)

    def _failed(self, worker: Worker, what: str, time_s: float, detail: str = "") -> None:
        """Counts a worker that ends before it is healthy."""
        record = self._record(worker.host, worker.mode)
        if worker.state is WorkerState.WARM:
            if self._unproven.pop(worker.name, None) is None or worker.since_s < record.failed_s:
                # The second condition counts workers that one cause has ended together as one failure.
                return
        elif worker.state is not WorkerState.STARTING:
            return
        record.num_failed, record.failed_s, record.ready = record.num_failed + 1, time_s, False
        self._work.discard(worker.host)
        if record.num_failed < MAX_FAILED_STARTS or worker.host not in self._hosts:
            return
        when = "while it waited for a job" if worker.state is WorkerState.WARM else "before it was ready"
        reason = entities.describe_starts(worker.mode, MAX_FAILED_STARTS, f"{what}, {when}", detail)
        if worker.host != OWN_HOST:
            self._hosts.gone(events.HostGone(time_s, worker.host, reason.removesuffix(".")))
            return
        for job in self._jobs.queued():
            if job.mode == worker.mode:
                self._jobs.fail(job.name, "WorkerError", f"The pool {reason}", -1, time_s)

    def deadlines(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Yields when the next worker must be ready or counts as healthy, with the function to call then."""
        longest = self._workers.longest_starting()
        if longest is not None:
            yield longest.since_s + self._warm_s, self._end_slow
        while self._unproven:
            name, due_s = next(iter(self._unproven.items()))
            worker = self._workers.get(name)
            if worker is not None and worker.state is WorkerState.WARM:
                yield due_s, self._prove
                return
            # It serves a job, or has ended.
            del self._unproven[name]

    def _end_slow(self, time_s: float) -> None:
        for worker in self._workers.starting():
            # It may have been deleted with its host, because another worker was too slow.
            if worker.since_s + self._warm_s <= time_s and worker.name in self._workers:
                self._end(worker, f"was not ready after {self._warm_s:.0f} s", time_s)

    def _prove(self, time_s: float) -> None:
        for name in [name for name, due_s in self._unproven.items() if due_s <= time_s]:
            worker = self._workers.get(name)
            if worker is not None and worker.state is WorkerState.WARM:
                self._proven(worker)
