"""Implements the asynchronous runtime: workers push gradients to parameter servers, each at its own pace.

A job has one process per host. The first is the coordinator of all workers and parameter servers; the others are device hosts.
"""

from collections.abc import Sequence

from fdt.program.row_reader import RowReader
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.runtime import Assignment, Batch, Deliver, Engine, Rendezvous
from nfdt.cluster import read_cluster
from nfdt.coordinator import Coordinator
from nfdt.device_host import DeviceHost
from nfdt.hosts import named_hosts


class ParameterServerEngine:
    """See `fdt.worker.runtime.Engine`. Joining a job decides whether the process is its coordinator or a device host."""

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        """Becomes the job's coordinator (rank 0) or a device host."""
        self._cluster = read_cluster(assignment.environment)
        self._role: Engine
        if self._cluster is not None and assignment.rank > 0:
            self._role = DeviceHost(self._cluster)
        else:
            self._role = Coordinator(self._cluster)
        self._role.join(assignment, blobs, rendezvous)

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """See the role."""
        with named_hosts(self._cluster):
            self._role.load(program, step_program)

    def forget(self, program: int) -> None:
        """See the role."""
        with named_hosts(self._cluster):
            self._role.forget(program)

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """See the role."""
        self._role.bind(data, arrays, passing)

    def bind_rows(self, data: int, rows: RowReader) -> None:
        """See the role."""
        self._role.bind_rows(data, rows)

    def expect(self, program: int, batches: Sequence[Batch]) -> None:
        """See the role."""
        self._role.expect(program, batches)

    def release(self, data: int) -> None:
        """See the role."""
        self._role.release(data)

    def assign(self, program: int, state: job_pb2.State) -> None:
        """See the role."""
        with named_hosts(self._cluster):
            self._role.assign(program, state)

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """See the role."""
        with named_hosts(self._cluster):
            self._role.move(program, variables, source, source_variables)

    def run(self, program: int, batches: Sequence[Batch], deliver: Deliver | None) -> None:
        """See the role."""
        with named_hosts(self._cluster):
            self._role.run(program, batches, deliver)

    def steps(self) -> int:
        """See the role."""
        with named_hosts(self._cluster):
            return self._role.steps()

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """See the role."""
        with named_hosts(self._cluster):
            return self._role.drain(program, what, variables)

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """See the role."""
        return self._role.usage()
