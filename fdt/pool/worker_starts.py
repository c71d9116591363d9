"""Which worker processes a pool starts, until each is warm. No I/O: part of the pool's state."""

from collections.abc import Callable, Iterator, Mapping

from fdt.pool import jobs, lifecycle
from fdt.pool.host_table import HostTable
from fdt.pool.job_table import JobTable, Tell
from fdt.pool.jobs import Host, Worker, WorkerState
from fdt.pool.lifecycle import OWN_HOST
from fdt.pool.roster import Roster

# Workers of a mode that may end in a row without having been ready, before jobs are told that it will not work.
MAX_FAILED_STARTS = 3

# How many processes so many workers of a job take on one host.
Processes = Callable[[int], int]


class WorkerStarts:
    """Keeps as many processes of each mode as the jobs of a host can take."""

    def __init__(
        self,
        modes: Mapping[str, Processes],
        max_jobs: int | None,
        warm_s: float,
        hosts: HostTable,
        jobs: JobTable,
        workers: Roster,
        tell: Tell,
    ) -> None:
        """
        Args:
            modes: What the pool serves, and how many processes a job of each takes.
            max_jobs: Jobs that will run at once, at most; None for as many as there are workers.
            warm_s: Within which a worker must be ready.
            hosts: The pool's.
            jobs: The pool's.
            workers: The pool's.
            tell: Takes instructions.
        """
        self._modes, self._max_jobs, self._warm_s = modes, max_jobs, warm_s
        self._hosts, self._jobs, self._workers, self._tell = hosts, jobs, workers, tell
        # In a row, by host and mode; there is no number before the first has ended or is ready.
        self._failed: dict[tuple[str, str], int] = {}
        self._num_started = 0

    def start(self, time_s: float) -> None:
        """Starts what is lacking."""
        # Of the own machine's, jobs may want more than before.
        for name in dict.fromkeys([OWN_HOST, *self._workers.changed()]):
            for mode in self._modes:
                if name in self._hosts:
                    self._start_on(self._hosts[name], mode, time_s)
                else:
                    self._failed.pop((name, mode), None)

    def _start_on(self, host: Host, mode: str, time_s: float) -> None:
        if self._failed.get((host.name, mode), 0) >= MAX_FAILED_STARTS:
            return
        here = sum(worker.state is not WorkerState.LEAVING for worker in self._workers.on(host.name, mode))
        # The most that all jobs at once can take.
        max_jobs = host.slots if self._max_jobs is None else self._max_jobs
        wanted = min(host.slots, max_jobs * self._modes[mode](host.slots)) if host.slots else 0
        if host.name == OWN_HOST:
            # Besides its workers, and not kept ready for jobs to come: few jobs ask for one.
            wanted += sum(job.needs_pool for job in self._jobs.unended() if job.mode == mode)
        for _ in range(wanted - here):
            self._num_started += 1
            name = f"{mode}-{self._num_started}"
            self._workers[name] = Worker(name, mode, time_s, host.name)
            self._tell(lifecycle.StartWorker(name, mode, host.name))

    def retry(self, mode: str) -> None:
        """Starts workers again where they failed: whoever submits a job again may have mended it."""
        if self._failed.get((OWN_HOST, mode), 0) >= MAX_FAILED_STARTS:
            self._failed[OWN_HOST, mode] = 0

    def ready(self, event: lifecycle.WorkerReady) -> None:
        """Records that a worker waits for a job."""
        worker = self._workers.get(event.worker)
        if worker is not None and worker.state is WorkerState.STARTING:
            self._workers.ready(worker, event.time_s)
            before = self._failed.get((worker.host, worker.mode))
            self._failed[worker.host, worker.mode] = 0
            works = all(self._failed.get((worker.host, each)) == 0 for each in self._modes)
            if before != 0 and works and self._hosts[worker.host].placed:
                self._tell(lifecycle.HostWorks(worker.host))

    def exited(self, event: lifecycle.WorkerExited) -> None:
        """Deletes a worker whose process has ended."""
        worker = self._workers.pop(event.worker, None)
        if worker is not None and worker.state is WorkerState.STARTING:
            self._count(worker, f"it ended with {jobs.describe_status(event.status)}", event.time_s, event.detail)

    def _count(self, worker: Worker, what: str, time_s: float, detail: str = "") -> None:
        failed = self._failed[worker.host, worker.mode] = self._failed.get((worker.host, worker.mode), 0) + 1
        if failed < MAX_FAILED_STARTS or worker.host not in self._hosts:
            return
        reason = jobs.describe_starts(worker.mode, MAX_FAILED_STARTS, what, detail)
        if worker.host != OWN_HOST:
            self._hosts.gone(lifecycle.HostGone(time_s, worker.host, reason.removesuffix(".")))
            return
        for job in self._jobs.queued():
            if job.mode == worker.mode:
                self._jobs.fail(job.name, "WorkerError", f"The pool {reason}", -1, time_s)

    def deadlines(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Yields when the next worker must be ready, and what is done if it is not."""
        longest = self._workers.longest_starting()
        if longest is not None:
            yield longest.since_s + self._warm_s, self._end_slow

    def _end_slow(self, time_s: float) -> None:
        for worker in self._workers.starting():
            if worker.since_s + self._warm_s <= time_s:
                self._too_slow(worker, time_s)

    def _too_slow(self, worker: Worker, time_s: float) -> None:
        if worker.name not in self._workers:
            # Its host went because of another that was too slow.
            return
        self._workers.leave(worker, time_s)
        self._tell(lifecycle.KillWorker(worker.name))
        self._count(worker, f"it was not ready after {self._warm_s:.0f} s", time_s)
