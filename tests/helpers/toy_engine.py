"""A runtime without TensorFlow: it adds up the rows it is given. Faults are options of the job."""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fdt.blobs import BlobStore
from fdt.runtime import Assignment, Deliver, Placement
from protos import blobs_pb2, job_pb2, program_pb2

# States above this go through the store.
INLINE_BYTES = 1 << 16


class ToyRendezvous:
    """Nothing to open."""

    closed = 0

    def environment(self, rank: int) -> Mapping[str, str]:
        return {"TOY_RANK": str(rank)}

    def close(self) -> None:
        ToyRendezvous.closed += 1


class ToyLauncher:
    """Starts `ToyEngine`s, one process a worker."""

    engine = "tests.helpers.toy_engine:ToyEngine"

    def check(self, options: Mapping[str, str]) -> None:
        pass

    def num_processes(self, num_workers: int) -> int:
        return num_workers

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        return False

    def rendezvous(self, placement: Placement) -> ToyRendezvous:
        return ToyRendezvous()


class BrokenLauncher(ToyLauncher):
    """Its workers never get ready."""

    engine = "tests.helpers.toy_engine:BrokenEngine"


class BrokenEngine:
    """Cannot even be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such runtime")


class ToyEngine:
    """Adds up rows; `fault=KIND:RANK:STEP` makes a rank raise, exit, abort, be killed or stop at a step."""

    def join(self, assignment: Assignment, blobs: BlobStore) -> None:
        assert assignment.environment["TOY_RANK"] == str(assignment.rank)
        self._assignment, self._blobs = assignment, blobs
        self._arrays: dict[int, list[np.ndarray]] = {}
        self._steps, self._samples, self._total = 0, 0, 0.0
        self._state = b""
        kind, rank, step = (assignment.options.get("fault") or "none:-1:-1").split(":")
        self._fault = (kind, int(step)) if int(rank) == assignment.rank else None
        if self._fault is not None and self._fault[1] == 0:
            self._break()

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        print(f"loaded program {program}", file=sys.stderr, flush=True)

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        self._arrays[data] = [self._blobs.open(array.blob)[array.offset :].view(array.tensor.dtype) for array in arrays]

    def release(self, data: int) -> None:
        del self._arrays[data]

    def assign(self, program: int, state: job_pb2.State) -> None:
        payload = state.payload
        self._state = self._blobs.open(payload.blob).tobytes() if payload.HasField("blob") else payload.inline

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        raise RuntimeError("all programs share one state here")

    def run(self, program: int, data: int, batches: Sequence[bytes], deliver: Deliver | None) -> None:
        for batch in batches:
            self._steps += 1
            if self._fault is not None and self._fault[1] == self._steps:
                self._break()
            rows = np.frombuffer(batch, "<i8")
            self._samples += len(rows)
            self._total += float(self._arrays[data][0][rows].sum())

    def _break(self) -> None:
        assert self._fault is not None
        kind = self._fault[0]
        if kind == "raise":
            raise RuntimeError("toy failure")
        if kind == "exit":
            os._exit(7)
        if kind == "block":
            threading.Event().wait()
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])

    def drain(
        self, program: int, what: "job_pb2.Drain.What.ValueType", variables: Sequence[int] = ()
    ) -> job_pb2.Drained:
        content = np.float64(self._total).tobytes() + self._state
        if len(content) > INLINE_BYTES:
            payload = blobs_pb2.Payload(blob=self._blobs.write(content))
        else:
            payload = blobs_pb2.Payload(inline=content)
        return job_pb2.Drained(state=job_pb2.State(variables=[0], payload=payload))

    def steps(self) -> int:
        return self._steps

    def usage(self) -> list[job_pb2.WorkerUsage]:
        rank = self._assignment.rank
        return [job_pb2.WorkerUsage(rank=rank, steps=self._steps, samples=self._samples)]


ROOT = Path(__file__).parents[2]
