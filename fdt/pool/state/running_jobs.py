"""Handles the reports of workers that serve jobs. No I/O: part of the pool's state."""

import functools
from collections.abc import Callable, Iterator

from fdt.base.config import Timing
from fdt.pool.state import entities, events
from fdt.pool.state.entities import Job, JobState, Worker, WorkerState
from fdt.pool.state.host_table import LOST, HostTable
from fdt.pool.state.job_table import JobTable, Tell
from fdt.pool.state.worker_table import WorkerTable


class RunningJobs:
    """Ends a job when its last worker has closed, or when a worker fails."""

    def __init__(self, timing: Timing, hosts: HostTable, jobs: JobTable, workers: WorkerTable, tell: Tell) -> None:
        """
        Args:
            timing: `join_s` and `settle_s` are used.
            hosts: The pool's.
            jobs: The pool's.
            workers: The pool's.
            tell: Takes instructions.
        """
        self._timing, self._hosts, self._jobs, self._workers, self._tell = timing, hosts, jobs, workers, tell

    def _serving(self, name: str) -> tuple[Worker, Job] | None:
        worker = self._workers.get(name)
        if worker is None or worker.state is not WorkerState.SERVING or worker.job is None:
            return None
        return worker, self._jobs[worker.job]

    def joined(self, event: events.WorkerJoined) -> None:
        """Records that a worker has connected to the others of its job."""
        found = self._serving(event.worker)
        if found is None:
            return
        _, job = found
        job.joined.add(event.worker)
        if job.state is JobState.STARTING and len(job.joined) == len(job.workers):
            job.state = JobState.RUNNING
            self._tell(events.TellStarted(job.name))

    def closed(self, event: events.WorkerClosed) -> None:
        """Records that a worker has sent its last account."""
        found = self._serving(event.worker)
        if found is None:
            return
        _, job = found
        job.closed.add(event.worker)
        if len(job.closed) == len(job.workers):
            self._jobs.end(job, *entities.ending(job.exit_status or 0), event.time_s)

    def failed(self, event: events.WorkerFailed) -> None:
        """Records a worker's report of its failure; the other workers may report that they failed first."""
        found = self._serving(event.worker)
        if found is None:
            return
        _, job = found
        job.failures.setdefault(event.worker, event)
        if len(job.failures) == len(job.workers):
            self._settle(job)

    def _settle(self, job: Job, _: float = 0.0) -> None:
        # A worker that reports the loss of another is not the cause.
        own = [failure for failure in job.failures.values() if failure.error != LOST]
        cause = min(own or job.failures.values(), key=lambda failure: failure.time_s)
        # The process may have ended meanwhile.
        worker = self._workers.get(cause.worker)
        place = self._hosts.place_of(worker) if worker is not None else ""
        message = f"{cause.message} (It ran{place}.)" if place else cause.message
        rank = job.workers.index(cause.worker)
        self._jobs.fail(job.name, cause.error, message, rank, cause.time_s, cause.step)

    def exited(self, event: events.WorkerExited) -> None:
        """Ends the job of a worker whose process ended before the job."""
        found = self._serving(event.worker)
        if found is None:
            return
        worker, job = found
        if worker.name in job.failures:
            # The worker had reported the reason; the other workers may still report earlier failures.
            if not any(name in self._workers and name not in job.failures for name in job.workers):
                self._settle(job)
            return
        if worker.name in job.closed:
            return
        # The worker's death is the cause, and the other workers' later reports are its consequences. A worker that exceeded
        # its bounds would do so again, so the error must not be one after which the client restarts the job.
        error, message = "WorkerError" if event.over else LOST, entities.describe_end(self._called(worker, job), event)
        self._jobs.fail(job.name, error, message, worker.rank, event.time_s)

    def _called(self, worker: Worker, job: Job) -> str:
        return f"Rank {worker.rank} of job {job.name}{self._hosts.place_of(worker)}"

    def silent(self, event: events.WorkerSilent) -> None:
        """Ends the job of a worker that has fallen silent."""
        found = self._serving(event.worker)
        if found is not None:
            worker, job = found
            silence = f"has stopped answering: nothing was heard from it for {event.silent_s:.0f} s."
            message = f"{self._called(worker, job)} {silence}"
            self._jobs.fail(job.name, LOST, message, worker.rank, event.time_s)

    def idle(self, event: events.JobIdle) -> None:
        """Ends a job whose workers hang."""
        message = (
            f"The workers of job {event.job} have stopped: in the first step of a program none of them has used its processor "
            f"for {event.idle_s:.0f} s."
        )
        self._jobs.fail(event.job, LOST, message, -1, event.time_s)

    def deadlines(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Yields when a job's workers must have joined, and when the cause of a failure is decided."""
        for job in self._jobs.unended():
            if job.state is JobState.STARTING:
                yield job.started_s + self._timing.join_s, functools.partial(self._not_joined, job)
            if job.failures:
                noticed_s = min(failure.noticed_s for failure in job.failures.values())
                yield noticed_s + self._timing.settle_s, functools.partial(self._settle, job)

    def _not_joined(self, job: Job, time_s: float) -> None:
        missing = [self._workers[name] for name in job.workers if name not in job.joined and name in self._workers]
        ranks, places = [worker.rank for worker in missing], {self._hosts.place_of(worker) for worker in missing}
        message = entities.describe_absence(job.name, ranks, places, self._timing.join_s)
        self._jobs.fail(job.name, "WorkerError", message, ranks[0] if ranks else -1, time_s)
