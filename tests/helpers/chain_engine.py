"""A runtime whose state tells which steps made it, each how often and in which order; its faults are data.

A step takes the chain's value v to (3 v + row) mod p. Faults come as `faults=KIND:RANK:STEP,…` and fire once each in a run:
what has fired is noted in the folder `fired`. Those of the kind `spoiled` fire each time, once that folder has a file
`spoiled`. `dies=PART:SECONDS`: in so many of all questions for its state,
but the first, a process is killed within the time, while it writes and tells the answer. `point=NAME`: in the second of them
rank 0 is killed at this point of writing (`tests.helpers.failpoints`).
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.runtime import Assignment, Batch, Deliver, Rendezvous
from tests.helpers import failpoints
from tests.helpers.toy_engine import ToyLauncher, numbers

_PRIME = 1_000_003

# A value takes a multiple of 64 bytes.
_PADDED = 8


def _raise() -> None:
    raise RuntimeError("a fault of the step's own")


class InvalidArgument(Exception):
    """As TensorFlow's errors: with a code."""

    error_code = 3


def _refuse() -> None:
    raise InvalidArgument("a label is out of range [[{{node loss}}]]")


def _leak() -> None:
    """Takes memory until it is ended."""
    taken = []
    while True:
        taken.append(np.ones(1 << 20))


def _fill() -> None:
    """Writes into its own folder until it is ended."""
    with open("junk", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


def _fork() -> None:
    """Starts many processes and waits until it is ended; where it may not, it says so."""
    for _ in range(200):
        if not os.fork():
            break
    signal.pause()


_FAULTS: Mapping[str, Callable[[], object]] = {
    "block": lambda: threading.Event().wait(),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "raise": _raise,
    "refuse": _refuse,
    "spoiled": _refuse,
    "leak": _leak,
    "fill": _fill,
    "fork": _fork,
}


def chained(value: int, row: float) -> int:
    """Returns what a step makes of the chain's value."""
    return (3 * value + int(row)) % _PRIME


class ChainLauncher(ToyLauncher):
    """Starts `ChainEngine`s."""

    engine = "tests.helpers.chain_engine:ChainEngine"

    def environment(self, placement: object, rank: int) -> Mapping[str, str]:
        return {}


class ChainEngine:
    """See `fdt.worker.runtime.Engine`."""

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        self._rank, self._blobs = assignment.rank, blobs
        self._options = assignment.options
        self._values: dict[int, int] = {}
        self._arrays: dict[int, np.ndarray] = {}
        self._num_steps = self._num_asked = 0
        self._chosen = random.Random(f"{assignment.job} {assignment.rank} {self._options.get('seed', '')}")

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        self._values[program] = 0

    def forget(self, program: int) -> None:
        del self._values[program]

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        (array,) = arrays
        self._arrays[data] = numbers(self._blobs, array)

    def bind_rows(self, data: int, rows: object) -> None:
        raise RuntimeError("rows are numbers here, never files")

    def expect(self, program: int, batches: Sequence[Batch]) -> None:
        pass

    def release(self, data: int) -> None:
        del self._arrays[data]

    def assign(self, program: int, state: job_pb2.State) -> None:
        if state.zeros:
            self._values[program] = 0
            return
        payload = state.payload
        raw = self._blobs.open(payload.blob).tobytes() if payload.HasField("blob") else payload.inline
        values = np.frombuffer(raw, "<i8")
        if len(values) == _PADDED:
            # A single number.
            values = values[:1]
        if (values != values[0]).any():
            raise RuntimeError("a state that is not whole")
        self._values[program] = int(values[0])

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        self._values[program] = self._values[source]

    def run(self, program: int, batches: Sequence[Batch], deliver: Deliver | None) -> None:
        for number, (data, batch) in enumerate(batches):
            (row,) = np.frombuffer(batch, "<i8")
            self._values[program] = chained(self._values[program], self._arrays[data][row])
            self._break(self._values[program])
            self._num_steps += 1
            time.sleep(float(self._options.get("step_s", "0")))  # so long a step takes
            if deliver is not None:
                deliver(number, np.int64(self._values[program]).tobytes())

    def _break(self, value: int) -> None:
        for fault in filter(None, self._options.get("faults", "").split(",")):
            kind, rank, at = fault.split(":")
            if (int(rank), int(at)) == (self._rank, value) and self._fires(fault):
                _FAULTS[kind]()

    def _fires(self, fault: str) -> bool:
        if fault.startswith("spoiled"):
            return Path(self._options["fired"], "spoiled").exists()
        if "fired" not in self._options:
            return True
        try:
            (Path(self._options["fired"]) / fault).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        self._die_soon()
        if self._rank == 0 and self._num_asked == 2 and "point" in self._options:
            failpoints.OF_WORKER[self._options["point"]]()
        # Large enough that it does not travel in the message.
        content = np.full(int(self._options.get("words", 1 << 16)), self._values[program], "<i8").tobytes()
        return job_pb2.Drained(state=job_pb2.State(variables=[0], payload=self._blobs.payload(content)))

    def _die_soon(self) -> None:
        """Has this process killed at a moment of the next milliseconds, now and then."""
        often, within_s = map(float, self._options.get("dies", "0:0").split(":"))
        self._num_asked += 1
        # The first answer of a process is whole: a run of bad luck would look like a fault of the step's own.
        if self._num_asked > 1 and self._chosen.random() < often:
            timer = threading.Timer(self._chosen.random() * within_s, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def steps(self) -> int:
        return self._num_steps

    def usage(self) -> list[job_pb2.WorkerUsage]:
        return [job_pb2.WorkerUsage(rank=self._rank, steps=self._num_steps)]
