"""Makes the assignments of a job's workers (rank, environment, key), and opens the job's rendezvous."""

import dataclasses
from collections.abc import Mapping, Sequence

from fdt.base.config import ServeConfig
from fdt.pool import hosts
from fdt.pool.hosts import Host
from fdt.pool.state.entities import Job
from fdt.pool.state.events import OWN_HOST
from fdt.v1 import job_pb2, worker_pb2
from fdt.worker.rendezvous import RendezvousTable
from fdt.worker.runtime import Launcher, Placement


class Assigner:
    """Makes the assignments of one pool's jobs."""

    def __init__(
        self, config: ServeConfig, launchers: Mapping[str, Launcher], rendezvous_table: RendezvousTable
    ) -> None:
        self._config, self._launchers, self._rendezvous_table = config, launchers, rendezvous_table

    def assignments(
        self,
        job: Job,
        opening: job_pb2.OpenJob,
        known: Mapping[str, Host],
        threads: Sequence[int],
        keys: Sequence[str],
    ) -> list[bytes]:
        """Returns the serialised assignment for each of a job's workers.

        Args:
            job: The job, which has workers and places.
            opening: The client's request.
            known: The pool's hosts, by name.
            threads: For each worker, how many threads an operation may use.
            keys: For each worker, the key with which it calls the pool for this job.

        Raises:
            UsageError: A host cannot give the job's processes a network namespace (`fdt.pool.hosts.check_tunnels`).
            Exception: The launcher failed.
        """
        placement = self._placement(job, opening, known)
        self._rendezvous_table.open(job.name, opening.num_workers)
        launcher, members = self._launchers[opening.mode], []
        if placement.tunnelled:
            members = [place.address for place, _ in placement.processes]
        assigned = [
            worker_pb2.Assignment(
                job=job.name,
                rank=rank,
                num_workers=opening.num_workers,
                num_threads=num_threads,
                environment=launcher.environment(placement, rank),
                options=opening.options,
                key=key,
                members=members,
            )
            for rank, (num_threads, key) in enumerate(zip(threads, keys, strict=True))
        ]
        return [worker_pb2.WorkerInstruction(assignment=each).SerializeToString() for each in assigned]

    def _placement(self, job: Job, opening: job_pb2.OpenJob, known: Mapping[str, Host]) -> Placement:
        workers = tuple(known[host].place for host, number in job.places for _ in range(number))
        placement = Placement(workers, known[OWN_HOST].place, job.places[0] == (OWN_HOST, 0))
        if self._launchers[opening.mode].tunnels and len(job.places) > 1 and not self._config.open_servers:
            hosts.check_tunnels(known[host] for host, _ in job.places)
            placement = dataclasses.replace(placement, tunnelled=True)
        return placement
