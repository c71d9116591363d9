"""What a pool is doing, and what it is to do next: events in, instructions out. No I/O; every race is a list of events.

Jobs start in the order in which they came. A pool has its own machine and the hosts that joined it. A job's workers fill
the own machine first, then the others in the order of their joining. A host that goes takes its workers with it, and fails
the jobs that they serve.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fdt.config import PlacingConfig, Timing
from fdt.errors import PoolRestartingError, WorkerLostError
from fdt.pool import jobs, lifecycle, placing
from fdt.pool.jobs import Host, Job, JobState, Worker, WorkerState
from fdt.pool.lifecycle import OWN_HOST
from fdt.pool.limits import DEFAULT, Limits, cut
from fdt.pool.roster import Roster
from fdt.scheduling.demand import Demand

# Workers of a mode that may end in a row without having been ready, before jobs are told that it will not work.
MAX_FAILED_STARTS = 3

# What a job waits for whose workers are free, and not warm yet.
WORKERS_START = "workers are starting"
# `fdt.errors`' name of what a job can be begun again after.
LOST = WorkerLostError.__name__
_RESTARTING = PoolRestartingError.__name__

# What is said of jobs that a pool which goes down does not take, or puts away.
RESTARTS = "The pool goes down to be started again, and takes no jobs until then."
_GOES_ON = "goes on as"
_WENT_DOWN = "the pool went down to be started again"

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
        before: Iterable[Job] = (),
        placing: PlacingConfig | None = None,
    ) -> None:
        """Begins with no process at all; the first `lifecycle.Tick` starts them.

        Args:
            num_workers: Workers of the pool's own machine that may serve jobs at once.
            modes: What the pool serves, and how many processes a job of each takes.
            timing: `warm_s`, `join_s` and `settle_s` are looked at.
            max_jobs: Jobs that will run at once, at most; None for as many as there are workers.
            limits: `queued_jobs`, `remembered_jobs` and the lengths of names are looked at.
            before: Jobs of the pools before, which have ended.
            placing: Hosts that a scheduler is asked for; None where people bring them.
        """
        # In the order in which jobs fill them.
        self.hosts: dict[str, Host] = {OWN_HOST: Host(OWN_HOST, "the pool's own machine", num_workers)}
        self.jobs: dict[str, Job] = {job.name: job for job in before}
        # Those of them that have not ended: what has is looked at no more.
        self._live: dict[str, Job] = {}
        self.workers = Roster()
        self._modes = dict(modes)
        self._max_jobs = max_jobs
        self._timing = timing
        self._limits = limits
        self._demand = Demand(placing) if placing is not None else None
        # By host and mode.
        self._failed_starts: dict[tuple[str, str], int] = {}
        self._num_started = 0
        # Until when a pool that goes down waits for its jobs.
        self._leaving_s: float | None = None
        # Until when what was kept for a session waits for its client.
        self._held: dict[bytes, float] = {}
        self._out: list[lifecycle.Instruction] = []
        self._handlers: dict[type[lifecycle.Event], Callable[..., None]] = {
            lifecycle.Submitted: self._submitted,
            lifecycle.HostJoined: self._host_joined,
            lifecycle.HostGone: self._host_gone,
            lifecycle.HostsWait: self._hosts_wait,
            lifecycle.HostsRefused: self._hosts_refused,
            lifecycle.WorkerReady: self._worker_ready,
            lifecycle.WorkerJoined: self._worker_joined,
            lifecycle.WorkerFailed: self._worker_failed,
            lifecycle.WorkerExited: self._worker_exited,
            lifecycle.WorkerSilent: self._worker_silent,
            lifecycle.JobIdle: self._job_idle,
            lifecycle.WorkerClosed: self._worker_closed,
            lifecycle.JobRefused: lambda event: self._fail(event.job, event.error, event.message, -1, event.time_s),
            lifecycle.ClientGone: lambda event: self._cancel(event, "the client went away"),
            lifecycle.Cancelled: lambda event: self._cancel(event, "cancelled"),
            lifecycle.Closing: self._closing,
            lifecycle.Leaving: self._leave,
            lifecycle.Tick: self._tick,
        }

    @property
    def num_workers(self) -> int:
        """Workers that may serve jobs at once, on all hosts."""
        return sum(host.slots for host in self.hosts.values())

    @property
    def capacity(self) -> int:
        """Workers that may serve jobs at once when all hosts are there that the scheduler is asked for at most."""
        if self._demand is None:
            return self.num_workers
        return self._demand.capacity(sum(host.slots for host in self.hosts.values() if not host.placed))

    @property
    def num_busy(self) -> int:
        """Workers that serve jobs now."""
        return self.busy().total()

    @property
    def num_free(self) -> int:
        """Workers that serve no job now."""
        return self.num_workers - self.num_busy

    @property
    def is_waited_for(self) -> bool:
        """Whether jobs wait for workers."""
        return any(job.state is JobState.QUEUED for job in self._live.values())

    @property
    def num_warm(self) -> int:
        """Processes that wait for a job."""
        return sum(worker.state is WorkerState.WARM for worker in self.workers.values())

    def handle(self, event: lifecycle.Event) -> Sequence[lifecycle.Instruction]:
        """Records an event and returns what to do now, in order."""
        self._out = []
        self._handlers[type(event)](event)
        if self._leaving_s is None:
            self._start_workers(event.time_s)
            self._start_jobs(event.time_s)
            self._ask_back()
            self._want_hosts(event.time_s)
            self._tell_positions()
        elif not self._unended():
            self._out.append(lifecycle.Stop())
        self._forget()
        return self._out

    def next_deadline_s(self) -> float | None:
        """Returns when a `lifecycle.Tick` is due, in seconds since the epoch; None if nothing is waited for."""
        return min((when for when, _ in self._deadlines()), default=None)

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def _submitted(self, event: lifecycle.Submitted) -> None:
        job = Job(event.job, event.mode, event.num_workers, event.script, event.time_s, event.needs_pool, event.session)
        job.least_workers = event.least_workers or event.num_workers
        for other in [o for o in self.jobs.values() if job.session and o.session == job.session]:
            if not other.state.ended:
                # Its connection has broken, which the pool would hear of later.
                self._end_of_client(other, JobState.CANCELLED, f"{_GOES_ON} {job.name}", event.time_s)
            elif other.state is JobState.INTERRUPTED and not other.reason.startswith(_GOES_ON):
                other.reason = f"{_GOES_ON} {job.name}"
        self._held.pop(job.session, None)
        self.jobs[job.name] = self._live[job.name] = job
        # Whoever asks again may have mended it.
        if self._failed_starts.get((OWN_HOST, event.mode), 0) >= MAX_FAILED_STARTS:
            self._failed_starts[OWN_HOST, event.mode] = 0
        if refusal := self._refusal(job):
            self._fail(job.name, *refusal, -1, event.time_s)

    def _refusal(self, job: Job) -> tuple[str, str] | None:
        if self._leaving_s is not None:
            return (_RESTARTING, RESTARTS)
        if job.mode not in self._modes:
            modes = ", ".join(sorted(self._modes))
            return ("UsageError", f"The pool does not serve this mode; it serves {modes}. Received: mode={job.mode}")
        if job.num_workers < 1:
            return ("UsageError", f"A job has at least 1 worker. Received: workers={job.num_workers}")
        if job.num_workers > self.capacity:
            return ("CapacityError", self._too_large(job))
        if len(self._queue()) > self._limits.queued_jobs:
            return ("CapacityError", f"{self._limits.queued_jobs} jobs are waiting already. Try again later.")
        return None

    def _too_large(self, job: Job) -> str:
        return (
            f"The pool has {self.capacity} worker(s). Ask for at most that many with --workers, or start a larger "
            f"pool. Received: workers={job.num_workers}"
        )

    def _unended(self) -> list[Job]:
        return list(self._live.values())

    def _queue(self) -> list[Job]:
        return [job for job in self._live.values() if job.state is JobState.QUEUED]

    def _start_jobs(self, time_s: float) -> None:
        for job in self._queue():
            places = self._places(job)
            workers = placing.processes(self.workers, places, job.mode, self._modes[job.mode])
            if not workers:
                # No overtaking: a job for many workers would never start.
                return
            job.state, job.started_s, job.places, job.workers = (JobState.STARTING, time_s, places, workers)
            for rank, name in enumerate(job.workers):
                worker = self.workers[name]
                worker.state, worker.job, worker.rank = (WorkerState.SERVING, job.name, rank)
            self._out.append(lifecycle.Assign(job.name, job.workers))

    def _ask_back(self) -> None:
        """Asks jobs that can do with fewer workers for what the first in the queue lacks, if they have that much."""
        first = next(iter(self._queue()), None)
        if first is None or self._places(first):
            return
        running = [job for job in self._live.values() if job.state is JobState.RUNNING]
        lacking = first.num_workers - self.num_free - sum(job.wanted for job in running)
        spare = {job.name: job.num_workers - job.least_workers for job in running if not job.wanted}
        if lacking > sum(spare.values()):
            return
        for name, most in spare.items():
            wanted = max(0, min(most, lacking))
            if wanted:
                self.jobs[name].wanted, lacking = wanted, lacking - wanted
                self._out.append(lifecycle.TellWanted(name, wanted))

    def busy(self) -> Counter[str]:
        return placing.busy(self._unended())

    def _places(self, job: Job) -> tuple[tuple[str, int], ...]:
        return placing.places(self.hosts.values(), self.busy(), job)

    def _tell_positions(self) -> None:
        for index, job in enumerate(self._queue()):
            told = (index + 1, self._waiting_for(job, index))
            if told != job.told:
                job.told = told
                self._out.append(lifecycle.TellQueued(job.name, *told))

    def _waiting_for(self, job: Job, ahead: int) -> str:
        if ahead:
            return f"{ahead} job(s) ahead"
        if self._places(job):
            return WORKERS_START
        asked = self._demand.describe() if self._demand is not None else ""
        busy = f"{self.num_busy} of {self.num_workers} worker(s) are busy" if self.num_busy or not asked else ""
        return "; ".join(filter(None, (busy, asked)))

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
        if isinstance(event, lifecycle.Cancelled) and job.exit_status is None:
            message = f"Job {job.name} was cancelled."
            if job.state is JobState.QUEUED:
                message += " It was still in the queue, so nothing has been trained."
            self._out.append(lifecycle.TellFailed(job.name, "JobCancelledError", message, -1, event.time_s))
        # As clients of a pool that goes down are asked to.
        left = self._leaving_s is not None
        state, reason = (JobState.INTERRUPTED, _WENT_DOWN) if left else (JobState.CANCELLED, reason)
        self._end_of_client(job, state, reason, event.time_s)

    def _end_of_client(self, job: Job, state: JobState, reason: str, time_s: float) -> None:
        """Ends a job whose client is gone, or has it cancelled: as its script did, if that had ended."""
        # That its workers have ended may be on the way here still.
        said_goodbye = job.exit_status is not None
        self._end(job, *(jobs.ending(job.exit_status or 0) if said_goodbye else (state, reason)), time_s)

    def _end(self, job: Job, state: JobState, reason: str, time_s: float) -> None:
        job.state, job.reason, job.ended_s = state, cut(reason, self._limits.listed_bytes), time_s
        self._live.pop(job.name, None)
        # Nobody asks for these again, and a worker's words may be long.
        job.failures.clear()
        for name in job.workers:
            worker = self.workers.get(name)
            if worker is not None and worker.state is not WorkerState.LEAVING:
                self.workers.leave(worker, time_s)
                gone = name in job.closed
                self._out.append(lifecycle.EndWorker(name) if gone else lifecycle.KillWorker(name))
        self._out.append(lifecycle.EndJob(job.name))
        if not job.session:
            return
        if job.exit_status is None and job.started_s:
            self._held[job.session] = time_s + self._timing.hold_s
        else:
            self._let_go(job.session)

    def _let_go(self, session: bytes, _: float = 0.0) -> None:
        self._held.pop(session, None)
        self._out.append(lifecycle.LetGo(session))

    def _forget(self) -> None:
        surplus = len(self.jobs) - len(self._live) - self._limits.remembered_jobs
        if surplus > 0:
            for name in list(itertools.islice((name for name in self.jobs if name not in self._live), surplus)):
                del self.jobs[name]

    # ---- a restart --------------------------------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        """Whether the pool is going down."""
        return self._leaving_s is not None

    def _leave(self, event: lifecycle.Leaving) -> None:
        if self._leaving_s is not None:
            return
        self._leaving_s = event.time_s + event.grace_s
        for job in self._queue():
            self._interrupt(job, event.time_s)
        running = self._unended()
        self._out += [lifecycle.TellLeaving(job.name, event.grace_s) for job in running]
        self._say(
            f"going down: {len(running)} job(s) have {event.grace_s:g} s to be put away; Ctrl-C ends them at once"
        )

    def _interrupt(self, job: Job, time_s: float) -> None:
        self._out.append(lifecycle.TellFailed(job.name, _RESTARTING, RESTARTS, -1, time_s))
        self._end(job, JobState.INTERRUPTED, _WENT_DOWN, time_s)

    def _graceless(self, time_s: float) -> None:
        for job in self._unended():
            self._interrupt(job, time_s)

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def _host_joined(self, event: lifecycle.HostJoined) -> None:
        self.hosts[event.host] = Host(event.host, event.label, event.slots, event.placed)
        self.workers.come(event.host)
        self._out.append(lifecycle.WelcomeHost(event.host))
        self._say(f"host {event.label} joined with {event.slots} worker(s); the pool has {self.num_workers}")

    def _host_gone(self, event: lifecycle.HostGone) -> None:
        host = self.hosts.get(event.host)
        if host is None or host.name == OWN_HOST:
            return
        del self.hosts[host.name]
        lost = {worker.name for mode in self._modes for worker in self.workers.on(host.name, mode)}
        for name in lost:
            del self.workers[name]
        for mode in self._modes:
            self._failed_starts.pop((host.name, mode), None)
        for job in self._unended():
            self._host_gone_from(job, host, lost, event)
        self._out.append(lifecycle.DropHost(host.name, event.reason, event.spare))
        self._say(f"host {host.label} {event.reason}; the pool has {self.num_workers} worker(s)")

    def _host_gone_from(self, job: Job, host: Host, lost: set[str], event: lifecycle.HostGone) -> None:
        ranks = [rank for rank, name in enumerate(job.workers) if name in lost and name not in job.closed]
        if ranks:
            message = f"Host {host.label} {event.reason}. Rank(s) {ranks} of job {job.name} ran there."
            self._fail(job.name, LOST, message, ranks[0], event.time_s)
        elif job.state is JobState.QUEUED and job.num_workers > self.capacity:
            message = f"Host {host.label} {event.reason}. {self._too_large(job)}"
            self._fail(job.name, "CapacityError", message, -1, event.time_s)

    # ---- hosts of a scheduler ---------------------------------------------------------------------------------------

    def _want_hosts(self, time_s: float) -> None:
        if self._demand is None:
            return
        queued = sum(job.num_workers for job in self._queue())
        if self._demand.look(self.hosts.values(), self.busy(), queued, time_s):
            self._out.append(lifecycle.WantHosts(self._demand.wanted))

    def _hosts_wait(self, event: lifecycle.HostsWait) -> None:
        if self._demand is not None:
            self._demand.reason = cut(event.reason, self._limits.listed_bytes)

    def _hosts_refused(self, event: lifecycle.HostsRefused) -> None:
        reason = cut(event.reason, self._limits.failure_bytes)
        self._say(f"no more hosts: {reason}")
        for job in self._queue():
            if job.num_workers > self.num_workers:
                message = f"The pool has {self.num_workers} worker(s) and gets no more hosts. {reason}"
                self._fail(job.name, "CapacityError", message, -1, event.time_s)

    def _host_works(self, host: str) -> None:
        if all(self._failed_starts.get((host, mode)) == 0 for mode in self._modes):
            self._out.append(lifecycle.HostWorks(host))

    def _give_back(self, host: str, time_s: float) -> None:
        self._host_gone(lifecycle.HostGone(time_s, host, "was given back, as no job needed it", spare=True))

    def _say(self, line: str) -> None:
        self._out.append(lifecycle.Say(line))

    def _place_of(self, worker: Worker) -> str:
        """Returns " on host NAME" for a worker that is not on the pool's own machine."""
        return "" if worker.host == OWN_HOST else f" on host {self.hosts[worker.host].label}"

    # ---- workers ----------------------------------------------------------------------------------------------------

    def _start_workers(self, time_s: float) -> None:
        # Of the own machine's, jobs may want more than before.
        for name in dict.fromkeys([OWN_HOST, *self.workers.changed()]):
            for mode in self._modes if name in self.hosts else ():
                self._start_workers_on(self.hosts[name], mode, time_s)

    def _start_workers_on(self, host: Host, mode: str, time_s: float) -> None:
        if self._failed_starts.get((host.name, mode), 0) >= MAX_FAILED_STARTS:
            return
        here = sum(worker.state is not WorkerState.LEAVING for worker in self.workers.on(host.name, mode))
        # The most that all jobs at once can take.
        max_jobs = host.slots if self._max_jobs is None else self._max_jobs
        wanted = min(host.slots, max_jobs * self._modes[mode](host.slots)) if host.slots else 0
        if host.name == OWN_HOST:
            # Besides its workers, and not kept ready for jobs to come: few jobs ask for one.
            wanted += sum(job.needs_pool for job in self._live.values() if job.mode == mode)
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
            self.workers.ready(worker, event.time_s)
            before = self._failed_starts.get((worker.host, worker.mode))
            self._failed_starts[worker.host, worker.mode] = 0
            if before != 0 and self.hosts[worker.host].placed:
                self._host_works(worker.host)

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
            self._end(job, *jobs.ending(job.exit_status or 0), event.time_s)

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

    def _settle(self, job: Job, _: float = 0.0) -> None:
        # Who says that it has lost the others says so because of one of them.
        own = [failure for failure in job.failures.values() if failure.error != LOST]
        cause = min(own or job.failures.values(), key=lambda failure: failure.time_s)
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
            self._failed_start(worker, f"it ended with {jobs.describe_status(event.status)}", event)

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
        # One that took too much would do so again, so its job is not begun again.
        self._fail(
            job.name, "WorkerError" if event.over else LOST, jobs.describe_end(who, event), worker.rank, event.time_s
        )

    def _failed_start(self, worker: Worker, what: str, event: lifecycle.Event) -> None:
        failed = self._failed_starts.get((worker.host, worker.mode), 0) + 1
        self._failed_starts[worker.host, worker.mode] = failed
        if failed < MAX_FAILED_STARTS or worker.host not in self.hosts:
            return
        reason = jobs.describe_starts(worker.mode, MAX_FAILED_STARTS, what, getattr(event, "detail", ""))
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
            who = f"Rank {worker.rank} of job {found[1].name}{self._place_of(worker)}"
            message = f"{who} has stopped answering: nothing was heard from it for {event.silent_s:.0f} s."
            self._fail(found[1].name, LOST, message, worker.rank, event.time_s)
        else:
            self._kill(worker, event.time_s)

    def _job_idle(self, event: lifecycle.JobIdle) -> None:
        message = (
            f"The workers of job {event.job} have stopped: in the first step of a program none of them has used its processor "
            f"for {event.idle_s:.0f} s."
        )
        self._fail(event.job, LOST, message, -1, event.time_s)

    def _kill(self, worker: Worker, time_s: float) -> None:
        self.workers.leave(worker, time_s)
        self._out.append(lifecycle.KillWorker(worker.name))

    # ---- time -------------------------------------------------------------------------------------------------------

    def _deadlines(self) -> list[tuple[float, Callable[[float], None]]]:
        deadlines: list[tuple[float, Callable[[float], None]]] = []
        longest = self.workers.longest_starting()
        if longest is not None:
            deadlines.append((longest.since_s + self._timing.warm_s, self._end_slow_starts))
        for job in self._unended():
            if job.state is JobState.STARTING:
                deadlines.append((job.started_s + self._timing.join_s, functools.partial(self._not_joined, job)))
            if job.failures:
                noticed_s = min(failure.noticed_s for failure in job.failures.values())
                deadlines.append((noticed_s + self._timing.settle_s, functools.partial(self._settle, job)))
        if self._leaving_s is not None:
            deadlines.append((self._leaving_s, self._graceless))
        for session, until_s in self._held.items():
            deadlines.append((until_s, functools.partial(self._let_go, session)))
        for due_s, host in self._demand.spare() if self._demand is not None else ():
            deadlines.append((due_s, functools.partial(self._give_back, host)))
        return deadlines

    def _tick(self, event: lifecycle.Tick) -> None:
        for when_s, act in self._deadlines():
            if when_s <= event.time_s:
                act(event.time_s)

    def _end_slow_starts(self, time_s: float) -> None:
        for worker in self.workers.starting():
            if worker.since_s + self._timing.warm_s <= time_s:
                self._too_slow(worker, time_s)

    def _too_slow(self, worker: Worker, time_s: float) -> None:
        if worker.name not in self.workers:
            # Its host went because of another that was too slow.
            return
        self._kill(worker, time_s)
        self._failed_start(worker, f"it was not ready after {self._timing.warm_s:.0f} s", lifecycle.Tick(time_s))

    def _not_joined(self, job: Job, time_s: float) -> None:
        missing = [self.workers[name] for name in job.workers if name not in job.joined and name in self.workers]
        ranks, places = [worker.rank for worker in missing], {self._place_of(worker) for worker in missing}
        message = jobs.describe_absence(job.name, ranks, places, self._timing.join_s)
        self._fail(job.name, "WorkerError", message, ranks[0] if ranks else -1, time_s)
