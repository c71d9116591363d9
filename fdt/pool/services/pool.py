"""Serves `fdt.v1.Pool`, which describes the pool and lists and cancels its jobs, and `grpc.health.v1.Health`."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from fdt.base.config import ServeConfig
from fdt.base.limits import cut
from fdt.base.versions import versions
from fdt.errors import AccessError, PoolRestartingError, VersionError
from fdt.pool.access import Access, Caller
from fdt.pool.state import entities
from fdt.pool.state.entities import JobState
from fdt.pool.state.job_table import RESTARTS
from fdt.pool.supervisor import Supervisor
from fdt.pool.view import overview
from fdt.transport.blobs import CHUNK_BYTES
from fdt.v1 import pool_pb2, program_pb2


class Pool:
    """The service `fdt.v1.Pool`."""

    def __init__(self, supervisor: Supervisor, config: ServeConfig, access: Access) -> None:
        self._supervisor, self._config, self._access = supervisor, config, access
        # Set once the ports are open.
        self.listens: list[str] = []
        # Returns a link that authorises one browser; "" without a page.
        self.link: Callable[[], str] = lambda: ""

    def Describe(self, request: pool_pb2.DescribeRequest, _: grpc.ServicerContext) -> pool_pb2.DescribeReply:
        check_version(request.versions)
        if self._supervisor.is_leaving:
            raise PoolRestartingError(RESTARTS)
        num_workers, num_free, num_warm, max_workers = self._supervisor.load()
        return pool_pb2.DescribeReply(
            versions=versions(),
            modes=self._config.modes,
            num_workers=num_workers,
            num_warm=num_warm,
            num_free=num_free,
            listens=self.listens,
            network=self._config.network.cidr if self._config.network else "",
            hosts=self._supervisor.joined_hosts(),
            max_workers=max_workers,
            worker_memory_bytes=self._supervisor.worker_memory_bytes(request.workers) if request.workers else 0,
        )

    def ListJobs(self, _: pool_pb2.ListJobsRequest, context: grpc.ServicerContext) -> pool_pb2.ListJobsReply:
        bound, caller = self._supervisor.limits.listed_bytes, self._access.caller(context)
        jobs = [_summary(job, steps, bound, caller.may_see(job.owner)) for job, steps in self._supervisor.list_jobs()]
        return pool_pb2.ListJobsReply(jobs=jobs)

    def GetLogs(self, request: pool_pb2.GetLogsRequest, context: grpc.ServicerContext) -> Iterator[pool_pb2.LogChunk]:
        caller = self._check_own(request.job, context, "logs fetched")
        return self._access.while_valid(caller, _chunks(self._supervisor.logs(request.job)))

    def CancelJob(self, request: pool_pb2.CancelJobRequest, context: grpc.ServicerContext) -> pool_pb2.CancelJobReply:
        self._check_own(request.job, context, "job cancelled")
        return pool_pb2.CancelJobReply(state=self._supervisor.cancel(request.job))

    def View(self, _: pool_pb2.ViewRequest, context: grpc.ServicerContext) -> pool_pb2.ViewReply:
        caller, snapshot = self._access.caller(context), self._supervisor.snapshot()
        jobs = [
            job if caller.may_see(job.owner) else dataclasses.replace(job, script="", reason="")
            for job in snapshot.jobs
        ]
        shown = overview(dataclasses.replace(snapshot, jobs=jobs), time.time())
        return pool_pb2.ViewReply(view=json.dumps(shown).encode())

    def OpenPage(self, _: pool_pb2.OpenPageRequest, context: grpc.ServicerContext) -> pool_pb2.OpenPageReply:
        self._access.did(context, "page opened")
        return pool_pb2.OpenPageReply(link=self.link())

    def _check_own(self, job: str, context: grpc.ServicerContext, event: str) -> Caller:
        """Checks that a caller may use a job, and writes the action into the audit log; returns the caller.

        Raises:
            ProtocolError: The pool knows no such job.
            AccessError: The job belongs to another person.
        """
        caller, owner = self._access.caller(context), self._supervisor.owner(job)
        if not caller.may_see(owner):
            self._access.did(context, "refused", method=event, job=job, reason="the job is not theirs")
            raise AccessError(
                f"Job {job} is not {caller.name}'s: only its owner and the pool's operator may read its logs and cancel it. "
                "`fdt jobs` shows each job's owner."
            )
        self._access.did(context, event, job=job)
        return caller


def _chunks(logs: Sequence[Path]) -> Iterator[pool_pb2.LogChunk]:
    for rank, log in enumerate(logs):
        yield pool_pb2.LogChunk(text=f"--- rank {rank}\n".encode())
        with contextlib.suppress(FileNotFoundError), open(log, "rb") as file:
            while text := file.read(CHUNK_BYTES):
                yield pool_pb2.LogChunk(text=text)


def _summary(job: entities.Job, steps: int, bound_bytes: int, is_open: bool) -> pool_pb2.JobSummary:
    """Returns a job's line in the list; without script and reason unless `is_open`."""
    reason = job.told[1] if job.state is JobState.QUEUED else job.reason
    return pool_pb2.JobSummary(
        job=job.name,
        state=job.state.value,
        script=cut(job.script, bound_bytes) if is_open else "",
        mode=job.mode,
        num_workers=job.num_workers,
        steps=steps,
        submitted_s=job.submitted_s,
        ended_s=job.ended_s,
        reason=reason if is_open else "",
        owner=job.owner,
    )


class Health:
    """The service `grpc.health.v1.Health`."""

    def Check(self, _: health_pb2.HealthCheckRequest, __: grpc.ServicerContext) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


def check_version(client: program_pb2.Versions) -> None:
    """Refuses a client of another major or minor version.

    Raises:
        VersionError: The client has another major or minor version.
    """
    ours = versions().fdt
    if client.fdt and client.fdt.split(".")[:2] != ours.split(".")[:2]:
        raise VersionError(
            f"The pool runs fdt {ours}, the client fdt {client.fdt}. Install the same version on both sides."
        )
