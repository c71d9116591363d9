"""Decides what a pool does next: events in, instructions out. No I/O; every race is a list of events.

A pool has its own machine and the hosts that joined it. When a host leaves, its workers are deleted and their jobs fail. The
parts of the state are the job table, the host table, the queue, the start of workers until they are healthy, and the running
jobs, each in a file of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fdt.base.config import PlacingConfig, Timing
from fdt.base.limits import DEFAULT, Limits
from fdt.pool.state import events
from fdt.pool.state.entities import Job, WorkerState
from fdt.pool.state.host_table import HostTable
from fdt.pool.state.job_queue import JobQueue
from fdt.pool.state.job_table import JobTable
from fdt.pool.state.running_jobs import RunningJobs
from fdt.pool.state.worker_starts import Processes, WorkerStarts
from fdt.pool.state.worker_table import WorkerTable


class PoolState:
    """All jobs, workers and hosts of a pool.

    Attributes:
        jobs: By name, oldest first.
        workers: By name.
        hosts: By name, in the order in which jobs fill them.
    """

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
        """Begins without processes; the first `events.Tick` starts them.

        Args:
            num_workers: Workers of the pool's own machine that may serve jobs at once.
            modes: The modes that the pool serves, and how many processes a job of each takes.
            timing: `warm_s`, `heartbeat_limit_s`, `join_s`, `settle_s` and `hold_s` are used.
            max_jobs: The most jobs that will run at once; None for as many as there are workers.
            limits: `queued_jobs`, `remembered_jobs` and the lengths of names are used.
            before: Jobs of earlier pools, which have ended.
            placing: The hosts to request from a scheduler; None if hosts are added by hand.
        """
        self._out: list[events.Instruction] = []
        tell, modes = self._tell, dict(modes)
        self.workers = workers = WorkerTable()
        self.jobs = jobs = JobTable(before, workers, timing.hold_s, limits, tell)
        self.hosts = hosts = HostTable(num_workers, jobs, workers, placing, limits, tell)
        self._starts = starts = WorkerStarts(modes, max_jobs, timing, hosts, jobs, workers, tell)
        self._queue = JobQueue(modes, limits, hosts, jobs, workers, tell)
        self._running = running = RunningJobs(timing, hosts, jobs, workers, tell)
        self._handlers: dict[type[events.Event], Callable[..., None]] = {
            events.Submitted: self._submitted,
            events.HostJoined: hosts.joined,
            events.HostGone: hosts.gone,
            events.HostsWait: hosts.wait,
            events.HostsRefused: hosts.refused,
            events.WorkerReady: starts.ready,
            events.WorkerJoined: self._worker_joined,
            events.WorkerFailed: running.failed,
            events.WorkerExited: self._worker_exited,
            events.WorkerSilent: self._worker_silent,
            events.JobIdle: running.idle,
            events.WorkerClosed: running.closed,
            events.JobRefused: jobs.refused,
            events.ClientGone: jobs.client_gone,
            events.Cancelled: jobs.cancelled,
            events.Closing: jobs.closing,
            events.Leaving: jobs.leave,
            events.Tick: self._tick,
        }

    @property
    def num_busy(self) -> int:
        """Workers that serve jobs now."""
        return self.jobs.num_busy

    @property
    def num_free(self) -> int:
        """Workers that serve no job now."""
        return self.hosts.num_workers - self.num_busy

    @property
    def num_warm(self) -> int:
        """Processes that wait for a job."""
        return sum(worker.state is WorkerState.WARM for worker in self.workers.values())

    @property
    def is_leaving(self) -> bool:
        """Whether the pool is going down."""
        return self.jobs.leaving_s is not None

    def handle(self, event: events.Event) -> Sequence[events.Instruction]:
        """Handles an event; returns the instructions to execute now, in order."""
        self._out = []
        self._handlers[type(event)](event)
        if not self.is_leaving:
            self._starts.start(event.time_s)
            self._queue.start_jobs(event.time_s)
            self._queue.ask_back()
            self.hosts.want(event.time_s)
            self._queue.tell_positions()
        elif not self.jobs.unended():
            self._tell(events.Stop())
        self.jobs.forget()
        return self._out

    def next_deadline_s(self) -> float | None:
        """Returns when an `events.Tick` is due, in seconds since the epoch; None if no deadline is pending."""
        return min((when for when, _ in self._deadlines()), default=None)

    def _tell(self, instruction: events.Instruction) -> None:
        self._out.append(instruction)

    def _submitted(self, event: events.Submitted) -> None:
        self._starts.retry(event.mode)
        self._queue.add(event)

    def _worker_joined(self, event: events.WorkerJoined) -> None:
        self._starts.joined(event)
        self._running.joined(event)

    def _worker_silent(self, event: events.WorkerSilent) -> None:
        self._running.silent(event)
        self._starts.silent(event)

    def _worker_exited(self, event: events.WorkerExited) -> None:
        self._running.exited(event)
        self._starts.exited(event)

    def _deadlines(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        for part in (self._starts, self._running, self.jobs, self.hosts):
            yield from part.deadlines()

    def _tick(self, event: events.Tick) -> None:
        for when_s, act in list(self._deadlines()):
            if when_s <= event.time_s:
                act(event.time_s)
