"""Defines the interface of a method of asynchronous training: delayed gradients, or averages of weights."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from fdt.program.packing import Pieces
from fdt.v1 import job_pb2, program_pb2
from nfdt.feed import Feed

Done = Callable[[Sequence[np.ndarray]], None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one step of one worker trains on.

    Attributes:
        program: The number of its program.
        feed: The arrays of the step's inputs.
        rows: int64 [batch], row numbers of the feed's arrays.
        num_samples: How many samples the rows hold. Passed in, since TensorFlow waits for the shape of another host's
            tensor without letting other threads run.
        done: Called, from any thread, with the step's outputs.
    """

    program: int
    feed: Feed
    rows: np.ndarray
    num_samples: int
    done: Done | None = None

    def goes_with(self, other: "Batch") -> bool:
        """Whether a worker may make the steps of both in one call, which returns only the last step's outputs."""
        if self.done is not None or other.done is not None:
            return self is other
        return self.program == other.program and self.feed is other.feed and len(self.rows) == len(other.rows)


class Method(Protocol):
    """All workers of a job. Called from one thread."""

    def load(self, program: int, source: program_pb2.StepProgram) -> None:
        """Makes a program ready to run."""

    def forget(self, program: int) -> None:
        """Frees a program; none of its batches may be left."""

    def give(self, batch: Batch) -> None:
        """Adds a batch, which exactly one worker trains on; waits while many are queued."""

    def wait(self) -> float:
        """Waits until all batches are done; returns when the queue became empty, by `time.perf_counter`."""

    def steps(self) -> int:
        """Returns how many batches have been trained on."""

    def read(self, program: int, indices: Sequence[int]) -> Mapping[int, np.ndarray | Pieces]:
        """Returns parameters and optimizer variables; of those that several servers hold, the rows in pieces."""

    def assign(self, program: int, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables for all workers and servers."""

    def read_own(self, program: int, worker: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns variables of one worker."""

    def assign_own(self, program: int, worker: int, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables of one worker."""

    def outputs(self, program: int) -> list[np.ndarray]:
        """Returns the outputs of the last step."""

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns every worker's account."""
