"""A runtime without TensorFlow: it adds up the rows it is given. Faults are options of the job."""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.runtime import Assignment, Batch, Deliver, Placement, Rendezvous

# What a flood's fault prints before it crashes: six times as much.
FLOOD_BYTES = 8 << 20


class ToyLauncher:
    """Starts `ToyEngine`s, one process a worker."""

    engine = "tests.helpers.toy_engine:ToyEngine"
    tunnels = False

    def check(self, options: Mapping[str, str]) -> None:
        pass

    def num_processes(self, num_workers: int) -> int:
        return num_workers

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        return False

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        return {"TOY_RANK": str(rank)}


class BrokenLauncher(ToyLauncher):
    """Its workers never get ready."""

    engine = "tests.helpers.toy_engine:BrokenEngine"


class BrokenEngine:
    """Cannot even be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such runtime")


class StuckLauncher(ToyLauncher):
    """Its workers never attach."""

    engine = "tests.helpers.toy_engine:StuckEngine"


class StuckEngine:
    """Is never made."""

    def __init__(self) -> None:
        threading.Event().wait()


def numbers(blobs: BlobStore, array: job_pb2.Array) -> np.ndarray:
    """The numbers of an array without its shape, from its blob or out of the message."""
    if not array.HasField("blob"):
        return np.frombuffer(array.content, array.tensor.dtype)
    return blobs.open(array.blob)[array.offset :].view(array.tensor.dtype)


class ToyEngine:
    """Adds up rows; `fault=KIND:RANK:STEP` makes a rank raise, exit, abort, be killed, print without end or stop at a
    step; `read=FILE` makes it read a file.
    """

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        assert assignment.environment["TOY_RANK"] == str(assignment.rank)
        self._assignment, self._blobs = assignment, blobs
        self._arrays: dict[int, list[np.ndarray]] = {}
        self._steps, self._samples, self._total = 0, 0, 0.0
        self._state = b""
        if "read" in assignment.options:
            Path(assignment.options["read"]).read_text()
        kind, rank, step = (assignment.options.get("fault") or "none:-1:-1").split(":")
        self._fault = (kind, int(step)) if int(rank) == assignment.rank else None
        if self._fault is not None and self._fault[1] == 0:
            self._break()

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        print(f"loaded program {program}", file=sys.stderr, flush=True)

    def forget(self, program: int) -> None:
        print(f"forgot program {program}", file=sys.stderr, flush=True)

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        self._arrays[data] = [numbers(self._blobs, array) for array in arrays]

    def bind_rows(self, data: int, rows: object) -> None:
        raise RuntimeError("rows are numbers here, never files")

    def expect(self, program: int, batches: Sequence[Batch]) -> None:
        pass

    def release(self, data: int) -> None:
        del self._arrays[data]

    def assign(self, program: int, state: job_pb2.State) -> None:
        payload = state.payload
        self._state = self._blobs.open(payload.blob).tobytes() if payload.HasField("blob") else payload.inline

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        raise RuntimeError("all programs share one state here")

    def run(self, program: int, batches: Sequence[Batch], deliver: Deliver | None) -> None:
        for number, (data, batch) in enumerate(batches):
            self._steps += 1
            if self._fault is not None and self._fault[1] == self._steps:
                self._break()
            rows = np.frombuffer(batch, "<i8")
            self._samples += len(rows)
            total = float(self._arrays[data][0][rows].sum())
            self._total += total
            if deliver is not None:
                num_bytes = int(self._assignment.options.get("result_bytes", "8"))
                deliver(number, np.full(num_bytes // 8, total).tobytes())

    def _break(self) -> None:
        assert self._fault is not None
        kind = self._fault[0]
        if kind == "raise":
            raise RuntimeError("toy failure")
        if kind == "exit":
            os._exit(7)
        if kind == "flood":
            for _ in range(FLOOD_BYTES >> 20):
                os.write(1, b"flood " * (1 << 20))
            faulthandler.dump_traceback(sys.stderr)
            os.abort()
        if kind == "block":
            threading.Event().wait()
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        content = np.float64(self._total).tobytes() + self._state
        return job_pb2.Drained(state=job_pb2.State(variables=[0], payload=self._blobs.payload(content)))

    def steps(self) -> int:
        return self._steps

    def usage(self) -> list[job_pb2.WorkerUsage]:
        rank = self._assignment.rank
        spent = {"compute_s": 3e-3 * self._steps, "exchange_s": 1e-3 * self._steps}
        return [job_pb2.WorkerUsage(rank=rank, steps=self._steps, samples=self._samples, **spent)]


ROOT = Path(__file__).parents[2]
