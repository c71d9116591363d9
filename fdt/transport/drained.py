"""Combines the answers of a job's processes to one request for state."""

import dataclasses

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
        usage: Accounts of workers.
        rows: By rank, rows of variables.
        count: How many workers have answered.
    """

    drained: job_pb2.Drained | None = None
    usage: list[job_pb2.WorkerUsage] = dataclasses.field(default_factory=list)
    rows: dict[int, job_pb2.Rows] = dataclasses.field(default_factory=dict)
    count: int = 0

    def add(self, rank: int, drained: job_pb2.Drained) -> None:
        """Adds a worker's answer."""
        self.count += 1
        self.usage.extend(drained.workers)
        if drained.state.rows:
            self.rows[rank] = drained.state.rows[0]
        if rank == 0:
            self.drained = drained

    def event(self) -> job_pb2.Event:
        """Returns the answer of all."""
        answer = job_pb2.Event(drained=self.drained)
        del answer.drained.workers[:], answer.drained.state.rows[:]
        answer.drained.workers.extend(sorted(self.usage, key=lambda worker: worker.rank))
        answer.drained.state.rows.extend(self.rows[rank] for rank in sorted(self.rows))
        return answer
