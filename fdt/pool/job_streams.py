"""Keeps the client side of a pool's jobs: each job's request, its stream, and its number of steps."""

import dataclasses
from collections.abc import Container, Iterable, Iterator
from typing import Any

from fdt.base.failure import MAX_FAILURE
from fdt.base.limits import Limits, check_name
from fdt.base.versions import versions
from fdt.pool.access import Caller
from fdt.pool.journal import Entry, number_of
from fdt.pool.relay import JobRelay, Room
from fdt.pool.state import events
from fdt.v1 import job_pb2


@dataclasses.dataclass(frozen=True)
class JobStream:
    """The client's request and the relay to the workers, of a job that has not ended."""

    opening: job_pb2.OpenJob
    relay: JobRelay


class JobStreams:
    """The streams of all jobs; the supervisor's lock guards them."""

    def __init__(self, limits: Limits, before: Iterable[Entry]) -> None:
        """
        Args:
            limits: The pool's limits.
            before: Jobs of earlier pools.
        """
        self._limits, self.unread = limits, Room(limits.unread_bytes_in_all)
        self._streams: dict[str, JobStream] = {}
        # Steps of jobs that have ended.
        self._steps = {entry.name: entry.steps for entry in before}
        self._num_jobs = max(map(number_of, self._steps), default=0)

    def __getitem__(self, job: str) -> JobStream:
        return self._streams[job]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._streams))

    def __len__(self) -> int:
        return len(self._streams)

    def check(self, opening: job_pb2.OpenJob) -> None:
        """Refuses a request with names that are too long.

        Raises:
            CapacityError: A name is too long.
        """
        check_name("The path of a script", opening.script, self._limits.script_bytes)
        check_name("The name of a mode", opening.mode, self._limits.name_bytes)

    def open(self, opening: job_pb2.OpenJob, caller: Caller) -> JobRelay:
        """Adds a job under a new name; returns its relay."""
        self._num_jobs += 1
        # The person's name is part of the session, so that nobody can continue another person's session. A name has no zero
        # byte.
        session = b"\0".join((caller.name.encode(), opening.session)) if opening.session else b""
        relay = JobRelay(f"job-{self._num_jobs}", caller, session, self._limits, self.unread)
        self._streams[relay.job] = JobStream(opening, relay)
        return relay

    def relay(self, job: str | None) -> JobRelay | None:
        """Returns the relay between a job's client and its workers; None if the job has ended or does not exist."""
        found = self._streams.get(job or "")
        return found.relay if found is not None else None

    def tell(self, job: str, **kind: Any) -> None:
        """Sends a job's client an event of the pool's own; `kind` is the field of `job_pb2.Event` to set."""
        self._streams[job].relay.tell(job_pb2.Event(**kind))

    def tell_queued(self, do: events.TellQueued) -> None:
        """Tells a client its job's position in the queue, and why the job waits."""
        self.tell(do.job, queued=job_pb2.Queued(position=do.position, reason=do.reason))

    def tell_started(self, do: events.TellStarted) -> None:
        """Tells a client that all workers have joined."""
        stream = self._streams[do.job]
        started = job_pb2.Started(job=do.job, num_workers=stream.opening.num_workers, versions=versions())
        started.processes.extend(stream.relay.processes)
        self.tell(do.job, started=started)

    def tell_leaving(self, do: events.TellLeaving) -> None:
        """Tells a client that the pool goes down."""
        self.tell(do.job, leaving=job_pb2.Leaving(grace_s=do.grace_s))

    def tell_wanted(self, do: events.TellWanted) -> None:
        """Tells a client that other jobs wait for workers."""
        self.tell(do.job, wanted=job_pb2.Wanted(workers=do.workers))

    def tell_failed(self, do: events.TellFailed) -> None:
        """Tells a client why its job has failed, and first after how many steps: the pool may know more than it was told."""
        steps = self._streams[do.job].relay.steps
        if steps:
            self.tell(do.job, progress=job_pb2.Progress(steps=steps))
        step = None if do.step is None else job_pb2.FailedStep(**dataclasses.asdict(do.step))
        message = do.message[:MAX_FAILURE]
        failed = job_pb2.Failed(error=do.error, message=message, rank=do.rank, time_s=do.time_s, step=step)
        self.tell(do.job, failed=failed)

    def steps(self, job: str) -> int:
        """Returns how many steps a job has done."""
        relay = self.relay(job)
        return relay.steps if relay is not None else self._steps.get(job, 0)

    def end(self, job: str, known: Container[str]) -> JobRelay:
        """Ends a job's stream and returns its relay; forgets the numbers of steps of ended jobs that are not in `known`."""
        relay = self._streams.pop(job).relay
        relay.end()
        self._steps = {name: steps for name, steps in self._steps.items() if name in known}
        self._steps[job] = relay.steps
        return relay
