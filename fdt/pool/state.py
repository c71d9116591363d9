"""What a pool is doing, and what it is to do next: events in, instructions out. No I/O; every race is a list of events.

Jobs start in the order in which they came. A pool has its own machine and the hosts that joined it. A job's workers fill
the own machine first, then the others in the order of their joining. A host that goes takes its workers with it, and fails
the jobs that they serve.
"""

import functools
import signal
from collections.abc import Callable, Mapping, Sequence

from fdt.config import Timing
from fdt.pool import lifecycle, placing
from fdt.pool.jobs import Host, Job, JobState, Worker, WorkerState, describe_status
from fdt.pool.lifecycle import OWN_HOST
from fdt.pool.limits import DEFAULT, Limits, cut

# Workers of a mode that may end in a row without having been ready, before jobs are told that it will not work.
MAX_FAILED_STARTS = 3

# The exit status of a script that Ctrl-C ended, as shells show it.
_INTERRUPTED = 128 + signal.SIGINT

# How many processes so many workers of a job take on one host.
Processes = Callable[[int], int]


class PoolState:
    """All jobs and workers of a pool."""

    def __init__(
        self,
        num_workers: int,
        modes: Mapping[str, Processes],
        timing: Timing,
        max_jobs: int | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        """Begins with no process at all; the first `lifecycle.Tick` starts them.

        Args:
            num_workers: Workers of the pool's own machine that may serve jobs at once.
            modes: What the pool serves, and how many processes a job of each takes.
            timing: `warm_s`, `join_s` and `settle_s` are looked at.
            max_jobs: Jobs that will run at once, at most; None for as many as there are workers.
            limits: `queued_jobs`, `remembered_jobs` and the lengths of names are looked at.
        """
        # In the order in which jobs fill them.
        self.hosts: dict[str, Host] = {OWN_HOST: Host(OWN_HOST, "the pool's own machine", num_workers)}
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self._modes = dict(modes)
        self._max_jobs = max_jobs
        self._timing = timing
        self._limits = limits
        # By host and mode.
        self._failed_starts: dict[tuple[str, str], int] = {}
        self._num_started = 0
        self._out: list[lifecycle.Instruction] = []
        self._handlers: dict[type[lifecycle.Event], Callable[..., None]] = {
            lifecycle.Submitted: self._submitted,
            lifecycle.HostJoined: self._host_joined,
            lifecycle.HostGone: self._host_gone,
            lifecycle.WorkerReady: self._worker_ready,
            lifecycle.WorkerJoined: self._worker_joined,
            lifecycle.WorkerFailed: self._worker_failed,
            lifecycle.WorkerExited: self._worker_exited,
            lifecycle.WorkerSilent: self._worker_silent,
            lifecycle.WorkerClosed: self._worker_closed,
            lifecycle.JobRefused: lambda event: self._fail(event.job, event.error, event.message, -1, event.time_s),
            lifecycle.ClientGone: lambda event: self._cancel(event, "the client went away"),
            lifecycle.Cancelled: lambda event: self._cancel(event, "cancelled"),
            lifecycle.Closing: self._closing,
            lifecycle.Tick: self._tick,
        }

    @property
    def num_workers(self) -> int:
        """Workers that may serve jobs at once, on all hosts."""
        return sum(host.slots for host in self.hosts.values())

    @property
    def num_busy(self) -> int:
        """Workers that serve jobs now."""
        return sum(map(self._busy_on, self.hosts))

    @property
    def num_warm(self) -> int:
        """Processes that wait for a job."""
        return sum(worker.state is WorkerState.WARM for worker in self.workers.values())

    def handle(self, event: lifecycle.Event) -> Sequence[lifecycle.Instruction]:
        """Takes note of an event and returns what to do now, in order."""
        self._out = []
        self._handlers[type(event)](event)
        self._start_workers(event.time_s)
        self._start_jobs(event.time_s)
        self._tell_positions()
        self._forget()
        return self._out

    def next_deadline_s(self) -> float | None:
        """Returns when a `lifecycle.Tick` is due, in seconds since the epoch; None if nothing is waited for."""
        return min((when for when, _ in self._deadlines()), default=None)

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def _submitted(self, event: lifecycle.Submitted) -> None:
        job = Job(event.job, event.mode, event.num_workers, event.script, event.time_s, event.needs_pool)
        self.jobs[job.name] = job
        # Whoever asks again may have mended it.
        if self._failed_starts.get((OWN_HOST, event.mode), 0) >= MAX_FAILED_STARTS:
            self._failed_starts[OWN_HOST, event.mode] = 0
        refusal = self._refusal(job)
        if refusal:
            self._fail(job.name, *refusal, -1, event.time_s)

    def _refusal(self, job: Job) -> tuple[str, str] | None:
        if job.mode not in self._modes:
            modes = ", ".join(sorted(self._modes))
            return ("UsageError", f"The pool does not serve this mode; it serves {modes}. Received: mode={job.mode}")
        if job.num_workers < 1:
            return ("UsageError", f"A job has at least 1 worker. Received: workers={job.num_workers}")
        if job.num_workers > self.num_workers:
            return ("CapacityError", self._too_large(job))
        if len(self._queue()) > self._limits.queued_jobs:
            return ("CapacityError", f"{self._limits.queued_jobs} jobs are waiting already. Try again later.")
        return None

    def _too_large(self, job: Job) -> str:
        return (
            f"The pool has {self.num_workers} worker(s). Ask for at most that many with --workers, or start a larger "
            f"pool. Received: workers={job.num_workers}"
        )

    def _queue(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state is JobState.QUEUED]

    def _start_jobs(self, time_s: float) -> None:
        for job in self._queue():
            places = self._places(job)
            workers = self._warm_workers(job.mode, places)
            if not workers:
                # No overtaking: a job for many workers would never start.
                return
            job.state, job.started_s, job.places, job.workers = (JobState.STARTING, time_s, places, workers)
            for rank, name in enumerate(job.workers):
                worker = self.workers[name]
                worker.state, worker.job, worker.rank = (WorkerState.SERVING, job.name, rank)
            self._out.append(lifecycle.Assign(job.name, job.workers))

    def _busy_on(self, host: str) -> int:
        places = [job.places for job in self.jobs.values() if not job.state.ended]
        return sum(num_workers for place in places for name, num_workers in place if name == host)

    def _places(self, job: Job) -> tuple[tuple[str, int], ...]:
        """Returns the hosts that have room for the job now and how many workers each takes; () if they have not."""
        free = {host.name: host.slots - self._busy_on(host.name) for host in self.hosts.values()}
        found = placing.place(free, job.num_workers)
        if found and job.needs_pool and found[0][0] != OWN_HOST:
            return ((OWN_HOST, 0), *found)
        return found

    def _warm_workers(self, mode: str, places: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        """Returns the processes that are to serve there; () while some of them are not warm."""
        workers: list[str] = []
        for host, num_workers in places:
            warm = [name for name, worker in self.workers.items() if self._is_warm(worker, mode, host)]
            needed = self._modes[mode](num_workers)
            if needed > len(warm):
                return ()
            workers += warm[:needed]
        return tuple(workers)

    @staticmethod
    def _is_warm(worker: Worker, mode: str, host: str) -> bool:
        return worker.state is WorkerState.WARM and (worker.mode, worker.host) == (mode, host)

    def _tell_positions(self) -> None:
        for index, job in enumerate(self._queue()):
            told = (index + 1, self._waiting_for(job, index))
            if told != job.told:
                job.told = told
                self._out.append(lifecycle.TellQueued(job.name, *told))

    def _waiting_for(self, job: Job, ahead: int) -> str:
        if ahead:
            return f"{ahead} job(s) ahead"
        if not self._places(job):
            return f"{self.num_busy} of {self.num_workers} worker(s) are busy"
        return "workers are starting"

    def _fail(self, name: str, error: str, message: str, rank: int, time_s: float) -> None:
        job = self.jobs.get(name)
        if job is None or job.state.ended:
            return
        self._out.append(lifecycle.TellFailed(name, error, message, rank, time_s))
        self._end(job, JobState.FAILED, message, time_s)

    def _cancel(self, event: lifecycle.ClientGone | lifecycle.Cancelled, reason: str) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.state.ended:
            return
        if isinstance(event, lifecycle.ClientGone) and job.exit_status is not None:
            # It had said goodbye; that its workers have ended may be on the way here still.
            self._end(job, *_ending(job.exit_status), event.time_s)
            return
        if isinstance(event, lifecycle.Cancelled):
            message = f"Job {job.name} was cancelled."
            self._out.append(lifecycle.TellFailed(job.name, "JobCancelledError", message, -1, event.time_s))
        self._end(job, JobState.CANCELLED, reason, event.time_s)

    def _end(self, job: Job, state: JobState, reason: str, time_s: float) -> None:
        job.state, job.reason, job.ended_s = state, cut(reason, self._limits.listed_bytes), time_s
        # Nobody asks for these again, and a worker's words may be long.
        job.failures.clear()
        for name in job.workers:
            worker = self.workers.get(name)
            if worker is not None and worker.state is not WorkerState.LEAVING:
                worker.state, worker.since_s = WorkerState.LEAVING, time_s
                gone = name in job.closed
                self._out.append(lifecycle.EndWorker(name) if gone else lifecycle.KillWorker(name))
        self._out.append(lifecycle.EndJob(job.name))

    def _forget(self) -> None:
        ended = [name for name, job in self.jobs.items() if job.state.ended]
        for name in ended[: max(0, len(ended) - self._limits.remembered_jobs)]:
            del self.jobs[name]

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def _host_joined(self, event: lifecycle.HostJoined) -> None:
        self.hosts[event.host] = Host(event.host, event.label, event.slots)
        self._out.append(lifecycle.WelcomeHost(event.host))
        self._say(f"host {event.label} joined with {event.slots} worker(s); the pool has {self.num_workers}")

    def _host_gone(self, event: lifecycle.HostGone) -> None:
        host = self.hosts.get(event.host)
        if host is None or host.name == OWN_HOST:
            return
        del self.hosts[host.name]
        lost = {name for name, worker in self.workers.items() if worker.host == host.name}
        for name in lost:
            del self.workers[name]
        for mode in self._modes:
            self._failed_starts.pop((host.name, mode), None)
        for job in list(self.jobs.values()):
            self._host_gone_from(job, host, lost, event)
        self._out.append(lifecycle.DropHost(host.name, event.reason))
        self._say(f"host {host.label} {event.reason}; the pool has {self.num_workers} worker(s)")

    def _host_gone_from(self, job: Job, host: Host, lost: set[str], event: lifecycle.HostGone) -> None:
        ranks = [rank for rank, name in enumerate(job.workers) if name in lost and name not in job.closed]
        if ranks:
            message = f"Host {host.label} {event.reason}. Rank(s) {ranks} of job {job.name} ran there."
            self._fail(job.name, "WorkerError", message, ranks[0], event.time_s)
        elif job.state is JobState.QUEUED and job.num_workers > self.num_workers:
            message = f"Host {host.label} {event.reason}. {self._too_large(job)}"
            self._fail(job.name, "CapacityError", message, -1, event.time_s)

    def _say(self, line: str) -> None:
        self._out.append(lifecycle.Say(line))

    def _place_of(self, worker: Worker) -> str:
        """Returns " on host NAME" for a worker that is not on the pool's own machine."""
        return "" if worker.host == OWN_HOST else f" on host {self.hosts[worker.host].label}"

    # ---- workers ----------------------------------------------------------------------------------------------------

    def _start_workers(self, time_s: float) -> None:
        for host in self.hosts.values():
            for mode in self._modes:
                self._start_workers_on(host, mode, time_s)

    def _start_workers_on(self, host: Host, mode: str, time_s: float) -> None:
        if self._failed_starts.get((host.name, mode), 0) >= MAX_FAILED_STARTS:
            return
        there = [w for w in self.workers.values() if (w.host, w.mode) == (host.name, mode)]
        here = sum(worker.state is not WorkerState.LEAVING for worker in there)
        # The most that all jobs at once can take.
        max_jobs = host.slots if self._max_jobs is None else self._max_jobs
        wanted = min(host.slots, max_jobs * self._modes[mode](host.slots)) if host.slots else 0
        if host.name == OWN_HOST:
            # Besides its workers, and not kept ready for jobs to come: few jobs ask for one.
            wanted += sum(job.needs_pool for job in self.jobs.values() if job.mode == mode and not job.state.ended)
        for _ in range(wanted - here):
            self._num_started += 1
            name = f"{mode}-{self._num_started}"
            self.workers[name] = Worker(name, mode, time_s, host.name)
            self._out.append(lifecycle.StartWorker(name, mode, host.name))

    def _serving(self, name: str) -> tuple[Worker, Job] | None:
        worker = self.workers.get(name)
        if worker is None or worker.state is not WorkerState.SERVING or worker.job is None:
            return None
        return worker, self.jobs[worker.job]

    def _worker_ready(self, event: lifecycle.WorkerReady) -> None:
        worker = self.workers.get(event.worker)
        if worker is not None and worker.state is WorkerState.STARTING:
            worker.state, worker.since_s = WorkerState.WARM, event.time_s
            self._failed_starts[worker.host, worker.mode] = 0

    def _worker_joined(self, event: lifecycle.WorkerJoined) -> None:
        found = self._serving(event.worker)
        if found is None:
            return
        _, job = found
        job.joined.add(event.worker)
        if job.state is JobState.STARTING and len(job.joined) == len(job.workers):
            job.state = JobState.RUNNING
            self._out.append(lifecycle.TellStarted(job.name))

    def _worker_closed(self, event: lifecycle.WorkerClosed) -> None:
        found = self._serving(event.worker)
        if found is None:
            return
        _, job = found
        job.closed.add(event.worker)
        if len(job.closed) == len(job.workers):
            self._end(job, *_ending(job.exit_status or 0), event.time_s)

    def _closing(self, event: lifecycle.Closing) -> None:
        job = self.jobs.get(event.job)
        if job is not None:
            job.exit_status = event.exit_status

    def _worker_failed(self, event: lifecycle.WorkerFailed) -> None:
        found = self._serving(event.worker)
        if found is None:
            return
        _, job = found
        job.failures.setdefault(event.worker, event)
        if len(job.failures) == len(job.workers):
            self._settle(job)

    def _settle(self, job: Job) -> None:
        cause = min(job.failures.values(), key=lambda failure: failure.time_s)
        # The process may have ended since.
        worker = self.workers.get(cause.worker)
        place = self._place_of(worker) if worker is not None else ""
        message = f"{cause.message} (It ran{place}.)" if place else cause.message
        self._fail(job.name, cause.error, message, job.workers.index(cause.worker), cause.time_s)

    def _worker_exited(self, event: lifecycle.WorkerExited) -> None:
        found = self._serving(event.worker)
        if found is not None:
            self._exited_serving(*found, event)
        worker = self.workers.pop(event.worker, None)
        if worker is not None and worker.state is WorkerState.STARTING:
            self._failed_start(worker, f"it ended with {describe_status(event.status)}", event)

    def _exited_serving(self, worker: Worker, job: Job, event: lifecycle.WorkerExited) -> None:
        if worker.name in job.failures:
            # It had said why; the others may still say that they were first.
            if not any(name in self.workers and name not in job.failures for name in job.workers):
                self._settle(job)
            return
        if worker.name in job.closed:
            return
        # A death is the cause: what the others say now, they say because of it.
        who = f"Rank {worker.rank} of job {job.name}{self._place_of(worker)}"
        message = f"{who} ended with {describe_status(event.status)}."
        if event.detail:
            message += f" The end of its log: {event.detail}"
        self._fail(job.name, "WorkerError", message, worker.rank, event.time_s)

    def _failed_start(self, worker: Worker, what: str, event: lifecycle.Event) -> None:
        detail = getattr(event, "detail", "")
        failed = self._failed_starts.get((worker.host, worker.mode), 0) + 1
        self._failed_starts[worker.host, worker.mode] = failed
        if failed < MAX_FAILED_STARTS or worker.host not in self.hosts:
            return
        reason = (
            f"cannot start workers of mode {worker.mode}: {MAX_FAILED_STARTS} in a row did not get ready; of the last, "
            f"{what}." + (f" The end of its log: {detail}" if detail else "")
        )
        if worker.host != OWN_HOST:
            self._host_gone(lifecycle.HostGone(event.time_s, worker.host, reason.removesuffix(".")))
            return
        for job in self._queue():
            if job.mode == worker.mode:
                self._fail(job.name, "WorkerError", f"The pool {reason}", -1, event.time_s)

    def _worker_silent(self, event: lifecycle.WorkerSilent) -> None:
        worker = self.workers.get(event.worker)
        if worker is None or worker.state is WorkerState.LEAVING:
            return
        found = self._serving(event.worker)
        if found is not None:
            message = (
                f"Rank {worker.rank} of job {found[1].name}{self._place_of(worker)} has stopped answering: nothing was "
                f"heard from it for {event.silent_s:.0f} s."
            )
            self._fail(found[1].name, "WorkerError", message, worker.rank, event.time_s)
        else:
            self._kill(worker, event.time_s)

    def _kill(self, worker: Worker, time_s: float) -> None:
        worker.state, worker.since_s = WorkerState.LEAVING, time_s
        self._out.append(lifecycle.KillWorker(worker.name))

    # ---- time -------------------------------------------------------------------------------------------------------

    def _deadlines(self) -> list[tuple[float, Callable[[float], None]]]:
        deadlines: list[tuple[float, Callable[[float], None]]] = []
        for worker in self.workers.values():
            if worker.state is WorkerState.STARTING:
                deadlines.append((worker.since_s + self._timing.warm_s, functools.partial(self._too_slow, worker)))
        for job in self.jobs.values():
            if job.state is JobState.STARTING:
                deadlines.append((job.started_s + self._timing.join_s, functools.partial(self._not_joined, job)))
            if job.failures and not job.state.ended:
                noticed_s = min(failure.noticed_s for failure in job.failures.values())
                deadlines.append((noticed_s + self._timing.settle_s, functools.partial(self._settled, job)))
        return deadlines

    def _tick(self, event: lifecycle.Tick) -> None:
        for when_s, act in self._deadlines():
            if when_s <= event.time_s:
                act(event.time_s)

    def _settled(self, job: Job, _: float) -> None:
        self._settle(job)

    def _too_slow(self, worker: Worker, time_s: float) -> None:
        if worker.name not in self.workers:
            # Its host went because of another that was too slow.
            return
        self._kill(worker, time_s)
        self._failed_start(worker, f"it was not ready after {self._timing.warm_s:.0f} s", lifecycle.Tick(time_s))

    def _not_joined(self, job: Job, time_s: float) -> None:
        missing = [self.workers[name] for name in job.workers if name not in job.joined and name in self.workers]
        ranks = [worker.rank for worker in missing]
        message = f"Rank(s) {ranks} of job {job.name} did not join the others within {self._timing.join_s:.0f} s."
        places = sorted({self._place_of(worker) for worker in missing} - {""})
        if places:
            message += f" They are{','.join(places)}: is its --trusted-network the one of the pool?"
        self._fail(job.name, "WorkerError", message, ranks[0] if ranks else -1, time_s)


def _ending(exit_status: int) -> tuple[JobState, str]:
    """Returns what became of a job that its client closed, and why."""
    if exit_status == _INTERRUPTED:
        return JobState.CANCELLED, "the script was interrupted (KeyboardInterrupt)"
    return JobState.FINISHED, f"the script ended with status {exit_status}" if exit_status else ""
