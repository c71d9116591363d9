"""Detects hosts and workers that have fallen silent, and workers that are alive but make no steps."""

import time
from collections.abc import Callable, Iterable, Mapping

from fdt.base.config import Timing
from fdt.pool.hosts import Host, JoinedHost
from fdt.pool.state import events
from fdt.pool.state.entities import Job, JobState
from fdt.pool.worker_links import WorkerLinks


class FailureDetector:
    """Monitors all hosts, workers and jobs of a pool.

    Attributes:
        heard_s: When each attached worker's last message came, by the monotonic clock.
        idle_s: The seconds for which each worker has left the processor idle in the first step of a program, from
            `fdt.worker.stall_detector`.
    """

    def __init__(self, timing: Timing, post: Callable[[events.Event], None]) -> None:
        """
        Args:
            timing: `heartbeat_s`, `heartbeat_limit_s` and `stall_s` are used.
            post: Takes the events about silent hosts and workers, and idle jobs.
        """
        self._timing, self._post = timing, post
        self.heard_s: dict[str, float] = {}
        self.idle_s: dict[str, float] = {}
        self._looked_s = time.monotonic()

    def forget(self, worker: str) -> None:
        """Stops monitoring a worker."""
        self.heard_s.pop(worker, None)
        self.idle_s.pop(worker, None)

    def look(self, joined: Mapping[str, JoinedHost], workers: WorkerLinks, jobs: Iterable[Job]) -> None:
        """Posts events for silent hosts and workers and for stalled jobs, if a check is due.

        Args:
            joined: The hosts that have joined.
            workers: The pool's workers.
            jobs: All known jobs.
        """
        now_s, limit_s = time.monotonic(), self._timing.heartbeat_limit_s
        if now_s - self._looked_s < self._timing.heartbeat_s / 2:
            return
        # After a pause of this process itself (a laptop that slept), all hosts and workers seem silent.
        asleep = now_s - self._looked_s > limit_s / 2
        self._looked_s = now_s
        # Hosts before their workers: if a host is silent, so are its workers.
        for host in list(joined.values()):
            silent_s = now_s - host.heard_s
            if asleep:
                host.heard_s = now_s
            elif silent_s > limit_s:
                reason = f"has stopped answering: nothing was heard from it for {silent_s:.0f} s"
                self._post(events.HostGone(time.time(), host.name, reason))
        for worker, heard_s in list(self.heard_s.items()):
            if asleep:
                self.heard_s[worker] = now_s
            elif now_s - heard_s > limit_s and self._is_outlived(workers.host_of(worker), heard_s):
                self._post(events.WorkerSilent(time.time(), worker, now_s - heard_s))
        for job in jobs:
            # A worker that computes keeps the others waiting, so the least idle worker counts.
            idle_s = min((self.idle_s.get(worker, 0.0) for worker in job.workers), default=0.0)
            if job.state is JobState.RUNNING and idle_s > self._timing.stall_s:
                self._post(events.JobIdle(time.time(), job.name, idle_s))

    def _is_outlived(self, host: Host | None, heard_s: float) -> bool:
        """Whether a silent worker's host has sent later messages; if not, the host is reported instead of the worker."""
        return not isinstance(host, JoinedHost) or host.heard_s > heard_s + self._timing.heartbeat_limit_s / 2
