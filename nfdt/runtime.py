"""The asynchronous runtime: workers that push gradients to parameter servers, each at its own pace."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fdt.blobs import BlobStore
from fdt.engine import as_state, bound_arrays, state_values, worker_seed
from fdt.errors import ProtocolError
from fdt.program import pack
from fdt.runtime import Assignment
from nfdt.averaging import Averaging
from nfdt.delayed import Delayed
from nfdt.devices import Devices, make_devices
from nfdt.method import Method
from nfdt.options import Options, read_options
from protos import job_pb2, program_pb2

_METRIC, _SEED, _OTHER = program_pb2.ROLE_METRIC, program_pb2.ROLE_SEED, program_pb2.ROLE_OTHER


class ParameterServerEngine:
    """A whole job in one process; see `fdt.runtime.Engine`."""

    def __init__(self) -> None:
        self._sources: dict[int, program_pb2.StepProgram] = {}
        self._data: dict[int, list[tf.Tensor]] = {}

    def join(self, assignment: Assignment, blobs: BlobStore) -> None:
        """Divides the process's devices between workers and parameter servers."""
        self._blobs = blobs
        self._options: Options = read_options(assignment.options)
        num_workers = assignment.num_workers
        self._devices: Devices = make_devices(num_workers, self._options.num_shards, assignment.num_threads)
        kind = Delayed if self._options.rule is not None else Averaging
        self._method: Method = kind(self._options, self._devices)

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Divides the step between workers and parameter servers."""
        self._sources[program] = step_program
        self._method.load(program, step_program)

    def bind(self, data: int, arrays: Sequence[job_pb2.Array]) -> None:
        """Maps the arrays."""
        self._data[data] = bound_arrays(self._blobs, arrays)

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Sets variables, once all steps before have run."""
        self._method.wait()
        source = self._sources[program]
        values = state_values(self._blobs, source, state)
        own = {i: v for i, v in values.items() if source.variables[i].role in (_METRIC, _SEED)}
        self._method.assign(program, {i: v for i, v in values.items() if i not in own})
        for worker in range(len(self._devices.workers)):
            self._method.assign_own(program, worker, _for_worker(source, own, worker))

    def run(self, program: int, data: int, batches: Sequence[bytes]) -> None:
        """Hands the batches to the workers; waits only while many are waiting already."""
        arrays = self._data[data]
        for raw in batches:
            rows = np.frombuffer(raw, "<i8")
            if not rows.size:
                raise ProtocolError("A step came without a sample; expected at least one row in each batch.")
            self._method.give(program, arrays, rows)

    def steps(self) -> int:
        """Returns how many steps have been finished."""
        return self._method.steps()

    def drain(self, program: int, what: "job_pb2.Drain.What") -> job_pb2.Drained:
        """Returns the state of servers and workers put together."""
        if what != job_pb2.Drain.WHAT_METRICS_SO_FAR:
            self._method.wait()
        source = self._sources[program]
        values = self._summed(program, _with_role(source, _METRIC))
        if what == job_pb2.Drain.WHAT_ALL:
            others = self._averaged(program, _with_role(source, _OTHER))
            self._method.assign(program, others)
            seeds = self._method.read_own(program, 0, _with_role(source, _SEED))
            kept = _with_role(source, program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)
            values |= others | seeds | self._method.read(program, kept)
        drained = job_pb2.Drained(outputs=bytes(pack(self._method.outputs(program))))
        drained.state.CopyFrom(as_state(self._blobs, values))
        return drained

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns every worker's account."""
        return self._method.usage()

    def _summed(self, program: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        own = [self._method.read_own(program, w, indices) for w in range(len(self._devices.workers))]
        return {i: np.sum([values[i] for values in own], axis=0, dtype=own[0][i].dtype) for i in indices}

    def _averaged(self, program: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Averages floating-point variables that every worker updated by its own batches; of others takes the first's."""
        own = [self._method.read_own(program, w, indices) for w in range(len(self._devices.workers))]
        averages = {}
        for i in indices:
            first = own[0][i]
            floating = tf.dtypes.as_dtype(first.dtype).is_floating
            together = [values[i] for values in own]
            averages[i] = (np.sum(together, axis=0) / len(own)).astype(first.dtype) if floating else first
        return averages


def _with_role(source: program_pb2.StepProgram, *roles: "program_pb2.Role") -> list[int]:
    return [i for i, variable in enumerate(source.variables) if variable.role in roles]


def _for_worker(
    source: program_pb2.StepProgram, values: Mapping[int, np.ndarray], worker: int
) -> dict[int, np.ndarray]:
    """Returns values as one worker gets them: what adds up goes to the first alone, seeds are set apart."""
    mine = {}
    for i, value in values.items():
        if source.variables[i].role == _SEED:
            mine[i] = worker_seed(value, worker)
        else:
            mine[i] = value if worker == 0 else np.zeros_like(value)
    return mine
