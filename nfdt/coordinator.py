"""Coordinates all workers and parameter servers of a job: this process's own, and those that other hosts lend."""

import functools
import json
import time
from collections.abc import Mapping, Sequence

import numpy as np

from fdt.errors import ProtocolError
from fdt.program.computation import adopt
from fdt.program.engine import as_state, bound_arrays, state_values, worker_seed
from fdt.program.packing import Pieces, joined, neutral, pack_outputs
from fdt.program.row_reader import RowReader
from fdt.program.step_program import num_samples
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker import runtime
from fdt.worker.runtime import Assignment, Deliver, Rendezvous
from nfdt.averaging import Averaging
from nfdt.cluster import Cluster
from nfdt.delayed import Delayed
from nfdt.device_host import data_key
from nfdt.devices import Devices, cpu_beside, driver_cpu, make_devices
from nfdt.feed import Arrays, Feed, mapped
from nfdt.hosts import borrow
from nfdt.method import Batch, Done, Method
from nfdt.options import Options, read_options
from nfdt.outer import is_continuous

# How long a host may take to fetch a job's arrays. A host that fails says so; this limit is for one that does not answer.
_FETCH_S = 3600.0
_TRAINABLE, _OPTIMIZER = program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER
_METRIC, _SEED, _OTHER = program_pb2.ROLE_METRIC, program_pb2.ROLE_SEED, program_pb2.ROLE_OTHER
_CONSTANT = program_pb2.ROLE_CONSTANT


class Coordinator:
    """See `fdt.worker.runtime.Engine`."""

    def __init__(self, cluster: Cluster | None) -> None:
        """
        Args:
            cluster: The hosts of the job; None if all of it is in this process.
        """
        self._cluster = cluster
        self._sources: dict[int, program_pb2.StepProgram] = {}
        self._data: dict[int, Feed] = {}
        self._readers: dict[int, RowReader] = {}
        self._shapes: dict[int, list[tuple[int, ...]]] = {}

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        """Divides devices between workers and parameter servers."""
        self._blobs, self._rendezvous = blobs, rendezvous
        self._options: Options = read_options(assignment.options)
        num_shards, num_threads = self._options.num_shards, assignment.num_threads
        if self._cluster is None:
            self._devices: Devices = make_devices(assignment.num_workers, num_shards, num_threads)
        else:
            shard_hosts = self._options.shard_hosts(len(self._cluster.members))
            self._devices = borrow(self._cluster, rendezvous, shard_hosts, num_threads)
        kind = Delayed if self._options.rule is not None else Averaging
        self._method: Method = kind(self._options, self._devices)

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Divides the step between workers and parameter servers."""
        self._sources[program] = step_program
        adopt(step_program.computation)
        self._method.load(program, step_program)

    def forget(self, program: int) -> None:
        """Frees a program's state on servers and workers."""
        self._method.wait()
        self._method.forget(program)
        del self._sources[program]

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """Maps the arrays; other hosts map their own copies, except for a stream, whose batches this process sends."""
        workers = self._devices.workers
        own = Arrays(bound_arrays(self._blobs, arrays), driver_cpu(workers[0]))
        self._shapes[data] = [tuple(array.tensor.shape) for array in arrays]
        if self._cluster is None or passing:
            self._data[data] = [own] * len(workers)
        else:
            self._data[data] = self._feed(self._cluster, data, arrays, own)

    def bind_rows(self, data: int, rows: RowReader) -> None:
        """Keeps the reader; this process reads the batches of all workers."""
        self._readers[data] = rows

    def expect(self, program: int, batches: Sequence[runtime.Batch]) -> None:
        """Begins to read the batches."""
        for data, raw in batches:
            if data in self._readers:
                self._readers[data].expect(np.frombuffer(raw, "<i8"))

    def release(self, data: int) -> None:
        """Forgets the arrays; the last batch that is taken from them frees them."""
        if data in self._readers:
            self._readers.pop(data).close()
            return
        del self._data[data], self._shapes[data]

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Sets variables, once all steps before have run."""
        self._method.wait()
        self._set(program, {i: joined(p) for i, p in state_values(self._blobs, self._sources[program], state)})

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Sets variables to another program's values, once all steps before have run."""
        self._method.wait()
        values = {i: _whole(value) for i, value in self._together(source, source_variables).items()}
        self._set(program, {i: values[j] for i, j in zip(variables, source_variables, strict=True)})

    def _set(self, program: int, values: Mapping[int, np.ndarray]) -> None:
        source = self._sources[program]
        own = {i: v for i, v in values.items() if source.variables[i].role in (_METRIC, _SEED)}
        self._method.assign(program, {i: v for i, v in values.items() if i not in own})
        for worker in range(len(self._devices.workers)):
            self._method.assign_own(program, worker, _for_worker(source, own, worker))

    def run(self, program: int, batches: Sequence[runtime.Batch], deliver: Deliver | None) -> None:
        """Hands the batches to the workers; waits only while many batches are queued."""
        source = self._sources[program]
        for number, (data, raw) in enumerate(batches):
            rows = np.frombuffer(raw, "<i8")
            if not rows.size:
                raise ProtocolError("A step came without a sample; expected at least one row in each batch.")
            done = functools.partial(_delivered, deliver, number, source) if deliver is not None else None
            self._method.give(self._batch(program, data, rows, done))

    def _batch(self, program: int, data: int, rows: np.ndarray, done: Done | None) -> Batch:
        if data in self._readers:
            # Of the rows that were read for this batch alone.
            read = self._readers[data].take(rows)
            shapes = self._readers[data].shapes(len(rows))
            feed: Feed = [Arrays(read, driver_cpu(self._devices.workers[0]))] * len(self._devices.workers)
            rows = np.arange(len(rows))
        else:
            feed, shapes = self._data[data], [(len(rows), *shape[1:]) for shape in self._shapes[data]]
        return Batch(program, feed, rows, num_samples(self._sources[program], shapes), done)

    def steps(self) -> int:
        """Returns how many steps have been finished."""
        return self._method.steps()

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """Returns the combined state of servers and workers."""
        # The time begins when no batch is queued any more: until then every worker has steps to do.
        began_s = self._method.wait() if what != job_pb2.Drain.WHAT_METRICS_SO_FAR else time.perf_counter()
        source = self._sources[program]
        everything = range(len(source.variables))
        if what == job_pb2.Drain.WHAT_ALL:
            values = self._together(program, variables or everything)
            # What a step only reads is asked for by name: copied from another program, or never.
            values |= self._method.read_own(program, 0, _with_role(source, variables, _CONSTANT))
        else:
            values = {**self._summed(program, _with_role(source, everything, _METRIC))}
        outputs = b"" if variables else _packed(source, self._method.outputs(program))
        drained = job_pb2.Drained(state=as_state(self._blobs, values), outputs=self._blobs.payload(outputs))
        drained.seconds = time.perf_counter() - began_s
        return drained

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns every worker's account."""
        return self._method.usage()

    def _feed(self, cluster: Cluster, data: int, arrays: Sequence[job_pb2.Array], own: Arrays) -> Feed:
        specs = [array.tensor for array in arrays]
        feed: list[Arrays] = []
        for rank, member in enumerate(cluster.members):
            if not rank:
                feed += [own] * member.num_workers
                continue
            # Fetching may take long, so wait for it here: a step that takes long counts as stalled (`stall_detector.py`).
            paths = json.loads(self._rendezvous.wait(data_key(data, rank), _FETCH_S))
            if member.num_workers:
                here = mapped(paths, specs, cpu_beside(self._devices.workers[len(feed)]))
                feed += [here] * member.num_workers
        return feed

    def _together(self, program: int, among: Sequence[int]) -> dict[int, np.ndarray | Pieces]:
        """Returns the combined values of servers and workers, and sets averaged variables to their average on all workers."""
        source = self._sources[program]
        others = self._averaged(program, _with_role(source, among, _OTHER))
        if others:
            self._method.assign(program, others)
        values: dict[int, np.ndarray | Pieces] = {**self._summed(program, _with_role(source, among, _METRIC)), **others}
        values |= self._method.read_own(program, 0, _with_role(source, among, _SEED))
        return {**values, **self._method.read(program, _with_role(source, among, _TRAINABLE, _OPTIMIZER))}

    def _summed(self, program: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        own = [self._method.read_own(program, w, indices) for w in range(len(self._devices.workers))]
        return {i: np.sum([values[i] for values in own], axis=0, dtype=own[0][i].dtype) for i in indices}

    def _averaged(self, program: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Averages real and complex variables that workers update by their own batches; of others takes the first worker's."""
        own = [self._method.read_own(program, w, indices) for w in range(len(self._devices.workers))]
        averages = {}
        for i in indices:
            first = own[0][i]
            together = [values[i] for values in own]
            averages[i] = (np.sum(together, axis=0) / len(own)).astype(first.dtype) if is_continuous(first) else first
        return averages


def _delivered(deliver: Deliver, number: int, source: program_pb2.StepProgram, outputs: Sequence[np.ndarray]) -> None:
    deliver(number, _packed(source, outputs))


def _whole(value: np.ndarray | Pieces) -> np.ndarray:
    return joined([*value.made]) if isinstance(value, Pieces) else value


def _packed(source: program_pb2.StepProgram, outputs: Sequence[np.ndarray]) -> bytes:
    return pack_outputs(outputs, [output.tensor for output in source.outputs])


def _with_role(source: program_pb2.StepProgram, among: Sequence[int], *roles: "program_pb2.Role") -> list[int]:
    return [i for i in among if source.variables[i].role in roles]


def _for_worker(
    source: program_pb2.StepProgram, values: Mapping[int, np.ndarray], worker: int
) -> dict[int, np.ndarray]:
    """Returns values for one worker: metrics go to the first worker only, seeds differ from worker to worker."""
    mine = {}
    for i, value in values.items():
        if source.variables[i].role == _SEED:
            mine[i] = worker_seed(value, worker)
        else:
            mine[i] = value if worker == 0 else neutral(value)
    return mine
