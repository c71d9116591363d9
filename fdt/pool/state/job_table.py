"""Keeps the jobs of a pool, and ends them. No I/O: part of the pool's state."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from fdt.base.limits import Limits, cut
from fdt.errors import FailedStep, PoolRestartingError
from fdt.pool.state import entities, events, placement
from fdt.pool.state.entities import Job, JobState, WorkerState
from fdt.pool.state.worker_table import WorkerTable

# The name of the error, and its message, with which a job ends when its pool goes down.
RESTARTING = PoolRestartingError.__name__
RESTARTS = "The pool goes down to be started again, and takes no jobs until then."
# The first words of the reason of a job that another job of its session has replaced.
_GOES_ON = "goes on as"
_WENT_DOWN = "the pool went down to be started again"

# Takes an instruction; instructions are executed in the order of these calls.
Tell = Callable[[events.Instruction], None]


class JobTable(dict[str, Job]):
    """Jobs by name, in the order of submission.

    Attributes:
        leaving_s: Until when a pool that goes down waits for its jobs; None while it stays up.
        held: By session, until when its snapshots are held for the client's next job.
    """

    def __init__(self, before: Iterable[Job], workers: WorkerTable, hold_s: float, limits: Limits, tell: Tell) -> None:
        """
        Args:
            before: Jobs of earlier pools, which have ended.
            workers: The pool's.
            hold_s: For how long a session's snapshots are held.
            limits: `remembered_jobs` and `listed_bytes` are used.
            tell: Takes instructions.
        """
        super().__init__({job.name: job for job in before})
        # The jobs that have not ended: only these are searched.
        self._live: dict[str, Job] = {}
        self._workers, self._hold_s, self._limits, self._tell = workers, hold_s, limits, tell
        self.leaving_s: float | None = None
        self.held: dict[bytes, float] = {}

    def unended(self) -> list[Job]:
        """Returns the jobs that have not ended."""
        return list(self._live.values())

    def queued(self) -> list[Job]:
        """Returns the jobs that wait for workers."""
        return [job for job in self._live.values() if job.state is JobState.QUEUED]

    def running(self) -> list[Job]:
        """Returns the jobs whose workers have all joined."""
        return [job for job in self._live.values() if job.state is JobState.RUNNING]

    @property
    def num_busy(self) -> int:
        """Workers that serve jobs, on all hosts."""
        return sum(job.num_workers for job in self._live.values() if job.places)

    def busy(self) -> Counter[str]:
        """Returns how many workers serve jobs, by host."""
        return placement.busy(self.unended())

    def add(self, job: Job, time_s: float) -> None:
        """Adds a job. It replaces its session's other jobs, which end; the session's snapshots are no longer held."""
        for other in [other for other in self.values() if job.session and other.session == job.session]:
            if not other.state.ended:
                # Its connection has broken, which the pool would notice later.
                self._end_of_client(other, JobState.CANCELLED, f"{_GOES_ON} {job.name}", time_s)
            elif other.state is JobState.INTERRUPTED and not other.reason.startswith(_GOES_ON):
                other.reason = f"{_GOES_ON} {job.name}"
        self.held.pop(job.session, None)
        self[job.name] = self._live[job.name] = job

    def fail(
        self, name: str, error: str, message: str, rank: int, time_s: float, step: FailedStep | None = None
    ) -> None:
        """Ends a job that has not ended yet, and tells its client why."""
        job = self._live.get(name)
        if job is None:
            return
        self._tell(events.TellFailed(name, error, message, rank, time_s, step))
        self.end(job, JobState.FAILED, message, time_s)

    def refused(self, event: events.JobRefused) -> None:
        """Ends a job that the pool itself refuses."""
        self.fail(event.job, event.error, event.message, -1, event.time_s)

    def closing(self, event: events.Closing) -> None:
        """Records how a job's script ended."""
        job = self.get(event.job)
        if job is not None:
            job.exit_status = event.exit_status

    def client_gone(self, event: events.ClientGone) -> None:
        """Ends a job whose client has disconnected."""
        self._cancel(event.job, "the client went away", event.time_s)

    def cancelled(self, event: events.Cancelled) -> None:
        """Ends a job that was cancelled."""
        job = self._live.get(event.job)
        if job is not None and job.exit_status is None:
            message = f"Job {job.name} was cancelled."
            if job.state is JobState.QUEUED:
                message += " It was still in the queue, so nothing has been trained."
            self._tell(events.TellFailed(job.name, "JobCancelledError", message, -1, event.time_s))
        self._cancel(event.job, "cancelled", event.time_s)

    def _cancel(self, name: str, reason: str, time_s: float) -> None:
        job = self._live.get(name)
        if job is not None:
            # If the pool goes down, it has asked the client to leave.
            left = self.leaving_s is not None
            state, reason = (JobState.INTERRUPTED, _WENT_DOWN) if left else (JobState.CANCELLED, reason)
            self._end_of_client(job, state, reason, time_s)

    def _end_of_client(self, job: Job, state: JobState, reason: str, time_s: float) -> None:
        """Ends a job whose client is gone or that was cancelled; with the script's status if the script had ended."""
        # After a client has closed its job, it may disconnect before the workers' last messages arrive.
        said_goodbye = job.exit_status is not None
        self.end(job, *(entities.ending(job.exit_status or 0) if said_goodbye else (state, reason)), time_s)

    def interrupt(self, job: Job, time_s: float) -> None:
        """Ends a job because its pool goes down."""
        self._tell(events.TellFailed(job.name, RESTARTING, RESTARTS, -1, time_s))
        self.end(job, JobState.INTERRUPTED, _WENT_DOWN, time_s)

    def end(self, job: Job, state: JobState, reason: str, time_s: float) -> None:
        """Ends a job and the workers that serve it."""
        job.state, job.reason, job.ended_s = state, cut(reason, self._limits.listed_bytes), time_s
        self._live.pop(job.name, None)
        # Frees memory: the messages may be long, and the table keeps ended jobs.
        job.failures.clear()
        for name in job.workers:
            worker = self._workers.get(name)
            if worker is not None and worker.state is not WorkerState.LEAVING:
                self._workers.leave(worker, time_s)
                gone = name in job.closed
                self._tell(events.EndWorker(name) if gone else events.KillWorker(name))
        self._tell(events.EndJob(job.name))
        if not job.session:
            return
        if job.exit_status is None and job.started_s:
            self.held[job.session] = time_s + self._hold_s
        else:
            self._let_go(job.session)

    def _let_go(self, session: bytes, _: float = 0.0) -> None:
        self.held.pop(session, None)
        self._tell(events.LetGo(session))

    def forget(self) -> None:
        """Deletes the oldest ended jobs beyond `remembered_jobs`."""
        surplus = len(self) - len(self._live) - self._limits.remembered_jobs
        if surplus > 0:
            for name in list(itertools.islice((name for name in self if name not in self._live), surplus)):
                del self[name]

    # ---- the pool goes down -----------------------------------------------------------------------------------------

    def leave(self, event: events.Leaving) -> None:
        """Ends queued jobs, and asks the clients of the others to take a snapshot and leave."""
        if self.leaving_s is not None:
            return
        self.leaving_s = event.time_s + event.grace_s
        for job in self.queued():
            self.interrupt(job, event.time_s)
        running = self.unended()
        for job in running:
            self._tell(events.TellLeaving(job.name, event.grace_s))
        line = f"going down: {len(running)} job(s) have {event.grace_s:g} s to take a snapshot; Ctrl-C ends them now"
        self._tell(events.Say(line))

    def _interrupt_all(self, time_s: float) -> None:
        for job in self.unended():
            self.interrupt(job, time_s)

    def deadlines(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Yields each due time with the function to call then."""
        if self.leaving_s is not None:
            yield self.leaving_s, self._interrupt_all
        for session, until_s in self.held.items():
            yield until_s, functools.partial(self._let_go, session)
