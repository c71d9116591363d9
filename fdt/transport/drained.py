"""Combines the answers of a job's processes to one request for state."""

import dataclasses
import itertools

from fdt.v1 import job_pb2


def only_rows(drained: job_pb2.Drained) -> None:
    """Leaves of an answer what a worker other than rank 0 may add to rank 0's: its account, and its rows of variables."""
    drained.ClearField("outputs")
    drained.state.ClearField("variables")
    drained.state.ClearField("payload")


@dataclasses.dataclass
class Answers:
    """What workers have answered to a drain so far.

    Attributes:
        drained: Rank 0's answer.
        usage: By rank of the process, accounts of its workers.
        rows: By rank, rows of variables.
    """

    drained: job_pb2.Drained | None = None
    usage: dict[int, list[job_pb2.WorkerUsage]] = dataclasses.field(default_factory=dict)
    rows: dict[int, job_pb2.Rows] = dataclasses.field(default_factory=dict)

    def add(self, rank: int, drained: job_pb2.Drained) -> None:
        """Adds the answer of a process; another one of the same takes its place."""
        if drained.state.rows:
            self.rows[rank] = drained.state.rows[0]
        if rank == 0:
            self.drained = drained
        self.usage[rank] = list(drained.workers)

    @property
    def count(self) -> int:
        """How many processes have answered."""
        return len(self.usage)

    def event(self) -> job_pb2.Event:
        """Returns the answer of all."""
        answer = job_pb2.Event(drained=self.drained)
        del answer.drained.workers[:], answer.drained.state.rows[:]
        usage = itertools.chain(*self.usage.values())
        answer.drained.workers.extend(sorted(usage, key=lambda worker: worker.rank))
        answer.drained.state.rows.extend(self.rows[rank] for rank in sorted(self.rows))
        return answer
