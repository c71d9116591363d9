"""Trains by averages: every worker trains by itself, and after every `average_every` steps their weights are averaged."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from fdt.program.packing import as_array, empty
from fdt.program.step_program import LoadedProgram, load, make_tables, shape_of
from fdt.v1 import job_pb2, program_pb2
from nfdt.devices import Devices, cpu_beside
from nfdt.method import Batch
from nfdt.options import Options
from nfdt.outer import OuterOptimizer, is_continuous, weighted_mean
from nfdt.rebound import Rebound

_KEPT = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)


class Averaging:
    """See `nfdt.method.Method`. Batches go to the workers in turn, so that each has as many in a round."""

    def __init__(self, options: Options, devices: Devices):
        """
        Args:
            options: Only `average_every` and `outer` are read.
            devices: The workers' devices.
        """
        self._options, self._devices = options, devices
        self._programs: dict[int, _Program] = {}
        self._round: _Round | None = None
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"fdt-worker-{d}") for d in devices.workers]
        self._usage = [job_pb2.WorkerUsage(rank=worker) for worker in range(len(devices.workers))]

    def load(self, program: int, source: program_pb2.StepProgram) -> None:
        """Builds a copy of the program for every worker."""
        self._programs[program] = _Program(source, self._devices.workers, self._options.outer)

    def forget(self, program: int) -> None:
        """Frees the copies."""
        del self._programs[program]

    def give(self, batch: Batch) -> None:
        """Hands a batch to the next worker in turn; waits for the round to end when it is full."""
        if self._round is not None and self._round.program is not self._programs[batch.program]:
            self.wait()
        if self._round is None:
            self._round = _Round(self._programs[batch.program], len(self._threads))
        worker = len(self._round.futures) % len(self._threads)
        self._round.weights[worker] += batch.num_samples
        self._round.num_steps[worker] += 1
        self._round.futures.append(self._threads[worker].submit(self._train, self._round.program, worker, batch))
        if len(self._round.futures) == len(self._threads) * self._options.average_every:
            self.wait()

    def wait(self) -> float:
        """Ends the round, even a short one: waits for its batches and averages; see `Method.wait`."""
        if self._round is None:
            return time.perf_counter()
        ended, self._round = self._round, None
        for future in ended.futures:
            future.result()
        started_s = time.perf_counter()
        ended.program.average(ended.before, ended.weights, ended.num_steps)
        seconds = time.perf_counter() - started_s
        for usage in self._usage:
            usage.exchange_s += seconds
        return started_s

    def steps(self) -> int:
        """Returns how many batches have been trained on."""
        failed = [f for f in (self._round.futures if self._round else ()) if f.done() and f.exception()]
        if failed:
            failed[0].result()
        return sum(usage.steps for usage in self._usage)

    def read(self, program: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns the first worker's values; after a round all workers have the same."""
        return self.read_own(program, 0, indices)

    def assign(self, program: int, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables of all workers."""
        for worker in range(len(self._devices.workers)):
            self.assign_own(program, worker, values)

    def read_own(self, program: int, worker: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns one worker's variables."""
        return {i: as_array(self._programs[program].variables[worker][i]) for i in indices}

    def assign_own(self, program: int, worker: int, values: Mapping[int, np.ndarray]) -> None:
        """Sets one worker's variables."""
        for i, value in values.items():
            self._programs[program].variables[worker][i].assign(value)

    def outputs(self, program: int) -> list[np.ndarray]:
        """Returns the outputs of the last step of the first worker."""
        return self._programs[program].outputs

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns every worker's account."""
        return list(self._usage)

    def _train(self, program: "_Program", worker: int, batch: Batch) -> None:
        """Runs in a worker's own thread."""
        usage, started_s = self._usage[worker], time.perf_counter()
        outputs = program.step(worker, batch.feed[worker].batch(batch.rows))
        if batch.done is not None:
            batch.done([as_array(output) for output in outputs])
        usage.compute_s += time.perf_counter() - started_s
        usage.samples += batch.num_samples
        usage.steps += 1


class _Round:
    """The batches between two averages."""

    def __init__(self, program: "_Program", num_workers: int):
        self.program = program
        self.before = program.kept(0)
        self.futures: list[Future[None]] = []
        # Samples and steps of each worker.
        self.weights = [0.0] * num_workers
        self.num_steps = [0] * num_workers


class _Program:
    """A program with one copy of its variables for each worker."""

    def __init__(self, source: program_pb2.StepProgram, devices: Sequence[str], outer: str):
        self.source, self._devices = source, devices
        with tf.device(devices[0]):
            loaded: LoadedProgram = load(source)
        self.variables, self._tables = [loaded.variables], [loaded.tables]
        for device in devices[1:]:
            with tf.device(device):
                specs = [v.tensor for v in source.variables]
                self.variables.append([tf.Variable(tf.zeros(shape_of(s), s.dtype), trainable=False) for s in specs])
            with tf.device(cpu_beside(device)):
                self._tables.append(make_tables(source))
        self._step = Rebound(loaded.step, [*loaded.variables, *loaded.tables])
        self._kept = loaded.with_role(*_KEPT)
        self._trained = set(loaded.with_role(program_pb2.ROLE_TRAINABLE))
        self._outer = {i: OuterOptimizer(outer) for i in self._trained}
        self.outputs = [empty(output.tensor) for output in source.outputs]

    def step(self, worker: int, batch: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        with tf.device(self._devices[worker]):
            outputs = self._step([*self.variables[worker], *self._tables[worker]], [tf.constant(1.0), *batch])
        if worker == 0:
            self.outputs = [as_array(output) for output in outputs]
        return outputs

    def kept(self, worker: int) -> dict[int, np.ndarray]:
        """Returns copies of a worker's parameters and optimizer state."""
        return {i: as_array(self.variables[worker][i]).copy() for i in self._kept}

    def average(self, before: Mapping[int, np.ndarray], weights: Sequence[float], num_steps: Sequence[int]) -> None:
        """Averages the workers' parameters and optimizer state, weighted by samples.

        Args:
            before: Every worker's values when the round began.
            weights: Samples that each worker trained on.
            num_steps: Steps that each worker took.
        """
        active = [worker for worker, weight in enumerate(weights) if weight > 0]
        for i in self._kept:
            mine = [as_array(self.variables[worker][i]) for worker in active]
            if not is_continuous(mine[0]):
                value = _counted(before[i], mine[0], num_steps[active[0]], sum(num_steps))
            elif all(np.array_equal(m, mine[0]) for m in mine):
                value = mine[0]
            else:
                value = weighted_mean(mine, [weights[worker] for worker in active])
            if i in self._trained:
                value = self._outer[i].update(before[i], value)
            for variables in self.variables:
                variables[i].assign(value)


def _counted(before: np.ndarray, after: np.ndarray, own_steps: int, all_steps: int) -> np.ndarray:
    """Returns a counter of steps as if one worker had taken all of them; other integers are left as they are."""
    if before.size == 1 and before.dtype.kind in "iu" and int(after) - int(before) == own_steps:
        return np.asarray(before + all_steps, before.dtype)
    return after
