"""Queues a pool's jobs: refuses those that cannot run, starts the next one, and tells clients why theirs wait.

No I/O: part of the pool's state. Jobs start in the order of submission. A job's workers fill the pool's own machine first, then
the other hosts in the order in which they joined.
"""

from collections.abc import Mapping

from fdt.base.limits import Limits
from fdt.pool.state import events, placement
from fdt.pool.state.entities import Job, JobState, WorkerState
from fdt.pool.state.host_table import HostTable
from fdt.pool.state.job_table import RESTARTING, RESTARTS, JobTable, Tell
from fdt.pool.state.worker_starts import Processes
from fdt.pool.state.worker_table import WorkerTable

# The reason given for a job whose workers are free but not warm yet.
WORKERS_START = "workers are starting"


class JobQueue:
    """Gives free workers to the first job that waits."""

    def __init__(
        self,
        modes: Mapping[str, Processes],
        limits: Limits,
        hosts: HostTable,
        jobs: JobTable,
        workers: WorkerTable,
        tell: Tell,
    ) -> None:
        """
        Args:
            modes: The modes that the pool serves, and how many processes a job of each takes.
            limits: `queued_jobs` is used.
            hosts: The pool's.
            jobs: The pool's.
            workers: The pool's.
            tell: Takes instructions.
        """
        self._modes, self._limits = modes, limits
        self._hosts, self._jobs, self._workers, self._tell = hosts, jobs, workers, tell

    def add(self, event: events.Submitted) -> None:
        """Adds a job, or refuses it."""
        job = Job(event.job, event.mode, event.num_workers, event.script, event.time_s, event.needs_pool, event.session)
        job.least_workers, job.owner = event.least_workers or event.num_workers, event.owner
        self._jobs.add(job, event.time_s)
        if refusal := self._refusal(job):
            self._jobs.fail(job.name, *refusal, -1, event.time_s)

    def _refusal(self, job: Job) -> tuple[str, str] | None:
        if self._jobs.leaving_s is not None:
            return (RESTARTING, RESTARTS)
        if job.mode not in self._modes:
            modes = ", ".join(sorted(self._modes))
            return ("UsageError", f"The pool does not serve this mode; it serves {modes}. Received: mode={job.mode}")
        if job.num_workers < 1:
            return ("UsageError", f"A job has at least 1 worker. Received: workers={job.num_workers}")
        if job.num_workers > self._hosts.capacity:
            return ("CapacityError", self._hosts.too_large(job))
        if len(self._jobs.queued()) > self._limits.queued_jobs:
            return ("CapacityError", f"{self._limits.queued_jobs} jobs are waiting already. Try again later.")
        return None

    def start_jobs(self, time_s: float) -> None:
        """Gives workers to queued jobs in order, as long as there is room."""
        for job in self._jobs.queued():
            places = self._places(job)
            workers = placement.processes(self._workers, places, job.mode, self._modes[job.mode])
            if not workers:
                # Later jobs must not start before this one: otherwise a job for many workers might never start.
                return
            job.state, job.started_s, job.places, job.workers = (JobState.STARTING, time_s, places, workers)
            for rank, name in enumerate(job.workers):
                worker = self._workers[name]
                worker.state, worker.job, worker.rank = (WorkerState.SERVING, job.name, rank)
            self._tell(events.Assign(job.name, job.workers))

    def ask_back(self) -> None:
        """Asks jobs that can run with fewer workers to give back as many as the first queued job lacks.

        Asks none if all that they can give back would not be enough.
        """
        first = next(iter(self._jobs.queued()), None)
        if first is None or self._places(first):
            return
        running = self._jobs.running()
        num_free = self._hosts.num_workers - self._jobs.num_busy
        lacking = first.num_workers - num_free - sum(job.wanted for job in running)
        spare = {job.name: job.num_workers - job.least_workers for job in running if not job.wanted}
        if lacking > sum(spare.values()):
            return
        for name, most in spare.items():
            wanted = max(0, min(most, lacking))
            if wanted:
                self._jobs[name].wanted, lacking = wanted, lacking - wanted
                self._tell(events.TellWanted(name, wanted))

    def _places(self, job: Job) -> placement.Places:
        # Most events of a full pool change nothing for queued jobs, so this check avoids a loop over all hosts.
        if job.num_workers > self._hosts.num_workers - self._jobs.num_busy:
            return ()
        return placement.places(self._hosts.values(), self._jobs.busy(), job)

    def tell_positions(self) -> None:
        """Tells clients where their jobs are in the queue, if that has changed."""
        for index, job in enumerate(self._jobs.queued()):
            told = (index + 1, self._waiting_for(job, index))
            if told != job.told:
                job.told = told
                self._tell(events.TellQueued(job.name, *told))

    def _waiting_for(self, job: Job, ahead: int) -> str:
        if ahead:
            return f"{ahead} job(s) ahead"
        if self._places(job):
            return WORKERS_START
        asked, num_busy = self._hosts.awaited(), self._jobs.num_busy
        busy = f"{num_busy} of {self._hosts.num_workers} worker(s) are busy" if num_busy or not asked else ""
        return "; ".join(filter(None, (busy, asked)))
