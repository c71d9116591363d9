"""Lends this host's devices to the job's coordinator on another host, and has the arrays ready as files."""

import json
from collections.abc import Sequence

from fdt.program.row_reader import RowReader
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.runtime import Assignment, Batch, Deliver, Rendezvous
from nfdt.cluster import Cluster
from nfdt.hosts import lend
from nfdt.options import read_options


class DeviceHost:
    """See `fdt.worker.runtime.Engine`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._steps = 0

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        """Makes this host's devices usable."""
        self._blobs, self._rank, self._rendezvous = blobs, assignment.rank, rendezvous
        shard_hosts = read_options(assignment.options).shard_hosts(len(self._cluster.members))
        self._server = lend(self._cluster, rendezvous, assignment.rank, shard_hosts, assignment.num_threads)

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Does nothing: the coordinator does it."""

    def forget(self, program: int) -> None:
        """Does nothing: the coordinator does it."""

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """Fetches missing arrays and tells the coordinator their paths; batches of a stream come from the coordinator."""
        if passing:
            return
        for array in arrays:
            self._blobs.open(array.blob)
        paths = [str(self._blobs.path(array.blob)) for array in arrays]
        self._rendezvous.put(data_key(data, self._rank), json.dumps(paths).encode())

    def bind_rows(self, data: int, rows: RowReader) -> None:
        """Does nothing: the coordinator reads all batches."""

    def expect(self, program: int, batches: Sequence[Batch]) -> None:
        """Does nothing: the coordinator reads all batches."""

    def release(self, data: int) -> None:
        """Does nothing: the coordinator does it."""

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Does nothing: the coordinator does it."""

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Does nothing: the coordinator does it."""

    def run(self, program: int, batches: Sequence[Batch], deliver: Deliver | None) -> None:
        """Does nothing: the coordinator does it."""
        self._steps += len(batches)

    def steps(self) -> int:
        """Returns how many steps the job was given: this process has none of them to wait for."""
        return self._steps

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """Returns nothing: a device host has no state of its own."""
        return job_pb2.Drained()

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns nothing: the coordinator keeps all accounts."""
        return []


def data_key(data: int, rank: int) -> str:
    """Returns the rendezvous key under which a process tells the paths of its arrays' files."""
    return f"data/{data}/{rank}"
