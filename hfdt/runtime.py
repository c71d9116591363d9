"""The synchronous runtime: N ranks, each with its share of every batch, gradients added up in each step."""

import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from fdt import rounding
from fdt.blobs import BlobStore, Buffer
from fdt.engine import as_state, bound_arrays, state_values, worker_seed
from fdt.errors import ProtocolError, WorkerError
from fdt.packing import empty, pack_outputs
from fdt.program import ALL_ROWS, LoadedProgram, load
from fdt.runtime import Assignment, Deliver, MeetingPlace
from hfdt import exchange
from hfdt.address import hold_to
from hfdt.bridge import Bridge
from hfdt.launch import ADDRESS
from hfdt.loop import StepLoop, share_of
from protos import job_pb2, program_pb2

_TRAINABLE, _OPTIMIZER = program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER
_METRIC, _SEED, _OTHER = program_pb2.ROLE_METRIC, program_pb2.ROLE_SEED, program_pb2.ROLE_OTHER
# The client knows the others.
_DRAINED = (_TRAINABLE, _OPTIMIZER, _METRIC, _SEED, _OTHER)


class HorovodEngine:
    """One rank; see `fdt.runtime.Engine`."""

    def __init__(self) -> None:
        self._programs: dict[int, LoadedProgram] = {}
        self._loops: dict[int, StepLoop] = {}
        self._data: dict[int, list[tf.Tensor]] = {}
        self._blobs: BlobStore | None = None
        self._meter: exchange.Meter | None = None
        self._rank = 0
        self._size = 1
        self._rounded = False
        self._usage = job_pb2.WorkerUsage()
        self._run_s = 0.0
        # By program: what its last step gave, and this worker's share of that.
        self._last: dict[int, tuple[list[np.ndarray], float]] = {}

    def join(self, assignment: Assignment, blobs: BlobStore, meeting: MeetingPlace) -> None:
        """Meets the other ranks."""
        os.environ.update(assignment.environment)
        tf.config.threading.set_intra_op_parallelism_threads(assignment.num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        _pin_gpu(assignment.rank)
        (library,) = Path(hvd.__file__).parent.glob("mpi_lib*.so")
        hold_to(library, assignment.environment[ADDRESS])
        with Bridge(meeting) as bridge:
            os.environ.update(bridge.environment())
            hvd.init()
        self._rank, self._size, self._blobs = hvd.rank(), hvd.size(), blobs
        self._rounded = rounding.is_rounded(assignment.options)
        if self._size != assignment.num_workers:
            raise WorkerError(f"Horovod found {self._size} ranks, the job has {assignment.num_workers}.")
        self._meter = exchange.Meter()

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Imports the step with its holes filled."""
        loaded = load(step_program, functools.partial(exchange.fill, rounded=self._rounded), self._rank)
        self._programs[program] = loaded
        equal = [loaded.variables[i] for i in self._equal_after_each_step(loaded)]
        self._loops[program] = StepLoop(loaded, functools.partial(exchange.average_of_rows, variables=equal))

    def _equal_after_each_step(self, loaded: LoadedProgram) -> list[int]:
        """Returns the variables that are put together after every step: of one rank that has all rows, none."""
        alone = self._size == 1 or loaded.source.rows == ALL_ROWS
        return [i for i, v in enumerate(loaded.source.variables) if v.each_step and not alone]

    def _apart(self, loaded: LoadedProgram, among: Sequence[int] | None = None) -> list[int]:
        """Returns the variables of which each rank has its own."""
        equal = self._equal_after_each_step(loaded)
        return [i for i in loaded.with_role(_OTHER, among=among) if i not in equal]

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """Maps the arrays; ranks of one host share the pages."""
        assert self._blobs is not None
        self._data[data] = bound_arrays(self._blobs, arrays)

    def release(self, data: int) -> None:
        """Unmaps the arrays."""
        del self._data[data]

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Sets variables; what adds up over ranks goes to rank 0 alone, seeds are set apart."""
        assert self._blobs is not None
        loaded = self._programs[program]
        for i, value in state_values(self._blobs, loaded.source, state).items():
            role = loaded.source.variables[i].role
            if role == _SEED:
                value = worker_seed(value, self._rank)
            loaded.variables[i].assign(self._part(role, value))

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Sets variables to another program's; those that are equal on all ranks stay on the device."""
        target, giving = self._programs[program], self._programs[source]
        values: dict[int, Any] = self._put_together(giving, source_variables)
        for i, j in zip(variables, source_variables, strict=True):
            value = values.get(j, giving.variables[j])
            target.variables[i].assign(self._part(target.source.variables[i].role, value))

    def _part(self, role: "program_pb2.Role", value: Any) -> Any:
        """Returns what this rank gets of a variable's value: what adds up goes to the first."""
        return tf.zeros_like(value) if role == _METRIC and self._rank > 0 else value

    def run(self, program: int, data: int, batches: Sequence[Buffer], deliver: Deliver | None) -> None:
        """Runs the steps; each run of batches of one size is one loop in the graph, unless each one's outputs are wanted."""
        started = time.perf_counter()
        rows = [np.frombuffer(batch, "<i8") for batch in batches]
        start = 0
        for end in range(1, len(rows) + 1):
            if deliver is not None or end == len(rows) or len(rows[end]) != len(rows[start]):
                self._run_equal(program, data, np.stack(rows[start:end]))
                if deliver is not None:
                    deliver(start, self._outputs(program))
                start = end
        self._run_s += time.perf_counter() - started
        self._usage.steps += len(rows)

    def steps(self) -> int:
        """Returns how many steps have been run."""
        return int(self._usage.steps)

    def _run_equal(self, program: int, data: int, rows: np.ndarray) -> None:
        """Runs steps whose batches have one size; rows: int64 [num_steps, batch]."""
        batch_size = rows.shape[1]
        if batch_size == 0:
            raise ProtocolError("A step came without a sample; expected at least one row in each batch.")
        fixed = self._programs[program].source.rows
        if fixed and batch_size > fixed and (batch_size % fixed or batch_size > fixed * self._size):
            raise ProtocolError(f"A batch of {batch_size} rows for {self._size} ranks that take {fixed} rows each.")
        low, high = share_of(batch_size, self._rank, self._size, fixed)
        share = (high - low) / batch_size
        if batch_size < self._size * max(1, fixed):
            outputs = self._run_with_idle_ranks(program, data, rows, low, high)
        else:
            outputs = self._loops[program].run(self._data[data], rows[:, low:high], share)
        self._last[program] = (outputs, share)
        self._usage.samples += rows.shape[0] * (high - low)

    def _run_with_idle_ranks(self, program: int, data: int, rows: np.ndarray, low: int, high: int) -> list[np.ndarray]:
        """Runs steps that have fewer samples than there are ranks.

        A rank without samples computes on the first one with share 0: it takes part in every collective, its gradients
        count as zeros, and its optimizer makes the same update as everybody's. What its step did to metrics is undone,
        and what it did to other variables is replaced by rank 0's (docs/decisions/0002).
        """
        loaded = self._programs[program]
        metrics = [loaded.variables[i] for i in loaded.with_role(_METRIC)]
        others = [loaded.variables[i] for i in self._apart(loaded)]
        idle = low == high
        loop = self._loops[program]
        outputs: list[np.ndarray] = []
        for batch in rows:
            before = [v.numpy().copy() for v in metrics] if idle else []
            mine = batch[: loaded.source.rows or 1] if idle else batch[low:high]
            outputs = loop.run(self._data[data], mine[None, :], (high - low) / len(batch))
            for variable, value in zip(metrics, before, strict=False):
                variable.assign(value)
            first = exchange.from_first_rank("fdt_idle", [v.numpy() for v in others])
            if idle:
                for variable, value in zip(others, first, strict=True):
                    variable.assign(value)
        return outputs

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """Returns the state of all ranks put together."""
        loaded = self._programs[program]
        if what == job_pb2.Drain.WHAT_ALL:
            among = variables or loaded.with_role(*_DRAINED)
            values = self._put_together(loaded, among)
            values |= {i: loaded.variables[i].numpy() for i in among if i not in values}
            equal = loaded.with_role(_TRAINABLE, _OPTIMIZER, among=among)
            self._check_equal(loaded, equal, [values[i] for i in equal])
        else:
            values = self._summed(loaded, loaded.with_role(_METRIC), "fdt_metrics")
        # All ranks take part in this.
        outputs = b"" if variables else self._outputs(program)
        if self._rank:
            return job_pb2.Drained()
        assert self._blobs is not None
        return job_pb2.Drained(state=as_state(self._blobs, values), outputs=self._blobs.payload(outputs))

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns this rank's account."""
        assert self._meter is not None
        seconds, num_bytes = self._meter.read()
        self._usage.rank = self._rank
        self._usage.exchange_s, self._usage.exchanged_bytes = seconds, num_bytes
        self._usage.compute_s = max(0.0, self._run_s - seconds)
        return [self._usage]

    def _put_together(self, loaded: LoadedProgram, among: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns, of variables of which each rank has its own, what they come to."""
        sums = self._summed(loaded, loaded.with_role(_METRIC, among=among), "fdt_metrics")
        return sums | self._averaged(loaded, self._apart(loaded, among))

    def _summed(self, loaded: LoadedProgram, indices: Sequence[int], name: str) -> dict[int, np.ndarray]:
        arrays = [loaded.variables[i].numpy() for i in indices]
        return dict(zip(indices, exchange.sum_over_ranks(name, arrays), strict=True))

    def _averaged(self, loaded: LoadedProgram, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Averages floating-point variables that every rank updated by its own rows; of others takes rank 0's."""
        floating = [i for i in indices if loaded.variables[i].dtype.is_floating]
        averages = {i: (total / self._size).astype(total.dtype) for i, total in self._sums(loaded, floating).items()}
        rest = [i for i in indices if i not in averages]
        first = exchange.from_first_rank("fdt_others", [loaded.variables[i].numpy() for i in rest])
        values = averages | dict(zip(rest, first, strict=True))
        if self._size > 1:
            for i, value in values.items():
                loaded.variables[i].assign(value)
        return values

    def _sums(self, loaded: LoadedProgram, indices: Sequence[int]) -> Mapping[int, np.ndarray]:
        return self._summed(loaded, indices, "fdt_averages")

    def _outputs(self, program: int) -> bytes:
        """Returns the last step's outputs, packed: floating-point ones weighted by share, others rank 0's."""
        described = self._programs[program].source.outputs
        outputs, share = self._last.get(program) or ([empty(output.tensor) for output in described], 0.0)
        whole = [output.whole for output in described]
        floating = [i for i, o in enumerate(outputs) if np.issubdtype(o.dtype, np.floating) and not whole[i]]
        mine = [outputs[i] * outputs[i].dtype.type(share) if share else np.zeros_like(outputs[i]) for i in floating]
        combined = list(outputs)
        for i, total in zip(floating, exchange.sum_over_ranks("fdt_outputs", mine), strict=True):
            combined[i] = total
        return pack_outputs(combined, [output.tensor for output in described])

    def _check_equal(self, loaded: LoadedProgram, indices: Sequence[int], values: Sequence[np.ndarray]) -> None:
        if self._size == 1 or not indices:
            return
        prints = exchange.gather("fdt_fingerprints", np.concatenate([fingerprint(value) for value in values])[None, :])
        for rank, row in enumerate(prints):
            different = np.flatnonzero(row != prints[0])
            if different.size:
                name = loaded.source.variables[indices[different[0] // 2]].tensor.name
                raise WorkerError(
                    f"The variable {name!r} of rank {rank} differs from rank 0's; synchronous training keeps them equal bit "
                    "for bit. This is a fault of the pool, not of the script: please report it with the script."
                )


def fingerprint(value: np.ndarray) -> np.ndarray:
    """Returns uint64 [2], the sum and the exclusive or of a value's bytes taken eight at a time.

    It tells two values apart at the speed of memory; it is no protection against somebody who wants them to look alike.
    """
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    words, rest = raw[: raw.size // 8 * 8].view(np.uint64), raw[raw.size // 8 * 8 :]
    tail = np.uint64(int.from_bytes(rest.tobytes(), "little"))
    return np.array([np.add.reduce(words) + tail, np.bitwise_xor.reduce(words) ^ tail], np.uint64)


def _pin_gpu(rank: int) -> None:
    """Gives a rank one GPU of its host, by its local rank; without GPUs does nothing."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        local_rank = int(os.environ.get("HOROVOD_LOCAL_RANK", rank))
        tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")
