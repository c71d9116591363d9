"""Keeps the hosts of a pool, including those from a scheduler. No I/O: part of the pool's state."""

import functools
from collections.abc import Callable, Iterator

from fdt.base.config import PlacingConfig
from fdt.base.limits import Limits, cut
from fdt.errors import WorkerLostError
from fdt.pool.state import events
from fdt.pool.state.entities import Host, Job, JobState, Worker
from fdt.pool.state.events import OWN_HOST
from fdt.pool.state.host_demand import HostDemand
from fdt.pool.state.job_table import JobTable, Tell
from fdt.pool.state.worker_table import WorkerTable

# The name of the error after which a client restarts its job.
LOST = WorkerLostError.__name__


class HostTable(dict[str, Host]):
    """Hosts by name, in the order in which jobs fill them: the pool's own machine first.

    Attributes:
        num_workers: Workers that may serve jobs at once, on all hosts.
    """

    def __init__(
        self,
        num_workers: int,
        jobs: JobTable,
        workers: WorkerTable,
        placing: PlacingConfig | None,
        limits: Limits,
        tell: Tell,
    ) -> None:
        """
        Args:
            num_workers: Workers of the pool's own machine that may serve jobs at once.
            jobs: The pool's.
            workers: The pool's.
            placing: The hosts to request from a scheduler; None if hosts are added by hand.
            limits: `listed_bytes` and `failure_bytes` are used.
            tell: Takes instructions.
        """
        super().__init__({OWN_HOST: Host(OWN_HOST, "the pool's own machine", num_workers)})
        self._jobs, self._workers, self._limits, self._tell = jobs, workers, limits, tell
        self._demand = HostDemand(placing) if placing is not None else None
        # Not summed each time, since there may be a thousand hosts.
        self.num_workers = num_workers

    @property
    def capacity(self) -> int:
        """The most workers that may serve jobs at once, counting all hosts that the scheduler may be asked for."""
        if self._demand is None:
            return self.num_workers
        return self._demand.capacity(sum(host.slots for host in self.values() if not host.placed))

    def too_large(self, job: Job) -> str:
        """Returns the message about a job that needs more workers than the pool can have."""
        return (
            f"The pool has {self.capacity} worker(s). Ask for at most that many with --workers, or start a larger "
            f"pool. Received: workers={job.num_workers}"
        )

    def place_of(self, worker: Worker) -> str:
        """Returns " on host NAME" for a worker that is not on the pool's own machine."""
        return "" if worker.host == OWN_HOST else f" on host {self[worker.host].label}"

    def joined(self, event: events.HostJoined) -> None:
        """Adds a host."""
        self[event.host] = Host(event.host, event.label, event.slots, event.placed)
        self.num_workers += event.slots
        self._workers.come(event.host)
        self._tell(events.WelcomeHost(event.host))
        self._say(f"host {event.label} joined with {event.slots} worker(s); the pool has {self.num_workers}")

    def gone(self, event: events.HostGone) -> None:
        """Deletes a host and its workers, and ends the jobs that the workers serve."""
        host = self.get(event.host)
        if host is None or host.name == OWN_HOST:
            return
        del self[host.name]
        self.num_workers -= host.slots
        lost = self._workers.lose(host.name)
        for job in self._jobs.unended():
            self._gone_from(job, host, lost, event)
        self._tell(events.DropHost(host.name, event.reason, event.spare))
        self._say(f"host {host.label} {event.reason}; the pool has {self.num_workers} worker(s)")

    def _gone_from(self, job: Job, host: Host, lost: set[str], event: events.HostGone) -> None:
        ranks = [rank for rank, name in enumerate(job.workers) if name in lost and name not in job.closed]
        if ranks:
            message = f"Host {host.label} {event.reason}. Rank(s) {ranks} of job {job.name} ran there."
            self._jobs.fail(job.name, LOST, message, ranks[0], event.time_s)
        elif job.state is JobState.QUEUED and job.num_workers > self.capacity:
            message = f"Host {host.label} {event.reason}. {self.too_large(job)}"
            self._jobs.fail(job.name, "CapacityError", message, -1, event.time_s)

    def _say(self, line: str) -> None:
        self._tell(events.Say(line))

    # ---- hosts of a scheduler ---------------------------------------------------------------------------------------

    def want(self, time_s: float) -> None:
        """Requests as many hosts from the scheduler as jobs need now."""
        if self._demand is None:
            return
        queued = sum(job.num_workers for job in self._jobs.queued())
        if self._demand.look(self.values(), self._jobs.busy(), queued, time_s):
            self._tell(events.WantHosts(self._demand.wanted))

    def awaited(self) -> str:
        """Returns which requested hosts have not joined, in words; "" for none."""
        return self._demand.describe() if self._demand is not None else ""

    def wait(self, event: events.HostsWait) -> None:
        """Records the scheduler's reason why hosts have not joined."""
        if self._demand is not None:
            self._demand.reason = cut(event.reason, self._limits.listed_bytes)

    def refused(self, event: events.HostsRefused) -> None:
        """Ends the jobs that wait for hosts which the scheduler does not give."""
        reason = cut(event.reason, self._limits.failure_bytes)
        self._say(f"no more hosts: {reason}")
        for job in self._jobs.queued():
            if job.num_workers > self.num_workers:
                message = f"The pool has {self.num_workers} worker(s) and gets no more hosts. {reason}"
                self._jobs.fail(job.name, "CapacityError", message, -1, event.time_s)

    def deadlines(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Yields the time at which to give back each host that no job needs, with the function that does so."""
        for due_s, host in self._demand.spare() if self._demand is not None else ():
            yield due_s, functools.partial(self._give_back, host)

    def _give_back(self, host: str, time_s: float) -> None:
        self.gone(events.HostGone(time_s, host, "was given back, as no job needed it", spare=True))
