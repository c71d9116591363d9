"""Trains by delayed gradients: each worker pulls, computes and pushes at its own pace."""

import itertools
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fdt.program.packing import Pieces, as_array, empty
from fdt.v1 import job_pb2, program_pb2
from nfdt.delays import Delays
from nfdt.devices import Devices, host_of
from nfdt.evaluation import Evaluation
from nfdt.loop import MOST_AT_ONCE
from nfdt.method import Batch
from nfdt.options import Options
from nfdt.servers import ParameterServers, may_chain
from nfdt.staleness_bound import StalenessBound, default_max_delay
from nfdt.step import Stepped
from nfdt.steps_per_call import StepsPerCall
from nfdt.worker_threads import WorkerThreads


class Delayed:
    """See `nfdt.method.Method`."""

    def __init__(self, options: Options, devices: Devices):
        """Starts the workers' threads.

        Args:
            options: Options with an update rule.
            devices: The devices of workers and parameter servers.
        """
        num_workers = len(devices.workers)
        self._options, self._devices = options, devices
        self._programs: dict[int, ParameterServers | Evaluation] = {}
        self._usage = [job_pb2.WorkerUsage(rank=worker) for worker in range(num_workers)]
        self._delays = Delays(num_workers)
        self._lock = threading.Lock()
        self._outputs: dict[int, list[tf.Tensor]] = {}
        max_delay = options.max_delay
        if max_delay is None:
            max_delay = default_max_delay(map(host_of, devices.workers))
        self._gate = StalenessBound(num_workers, max_delay)
        self._strides = [StepsPerCall() for _ in range(num_workers)]
        chains = may_chain(devices.shards, devices.workers, num_workers, self._gate)
        calls = 2 if chains else 1
        self._worker_threads: WorkerThreads[Batch] = WorkerThreads(
            num_workers, self._steps, self._gate, self._choose, MOST_AT_ONCE, calls
        )

    def load(self, program: int, source: program_pb2.StepProgram) -> None:
        """Builds shards and replicas."""
        assert self._options.rule is not None
        self._worker_threads.wait()
        if not source.holes:
            self._programs[program] = Evaluation(source, self._devices.workers)
            return
        self._programs[program] = ParameterServers(
            source,
            self._options.rule,
            self._devices.shards,
            self._devices.workers,
            rounded=self._options.rounded,
            gate=self._gate,
            memory_bytes=self._options.memory_bytes,
        )

    def forget(self, program: int) -> None:
        """Frees shards and replicas."""
        del self._programs[program]
        self._outputs.pop(program, None)

    def give(self, batch: Batch) -> None:
        """Adds a batch."""
        self._worker_threads.give(batch)

    def wait(self) -> float:
        """Waits for all batches; see `Method.wait`."""
        return self._worker_threads.wait()

    def steps(self) -> int:
        """Returns how many batches are done."""
        return self._worker_threads.done

    def read(self, program: int, indices: Sequence[int]) -> Mapping[int, np.ndarray | Pieces]:
        """Returns the shards' values."""
        return self._programs[program].read(indices)

    def assign(self, program: int, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables on shards and replicas."""
        self._programs[program].assign(values)

    def read_own(self, program: int, worker: int, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns a replica's values."""
        return self._programs[program].replicas[worker].read(indices)

    def assign_own(self, program: int, worker: int, values: Mapping[int, np.ndarray]) -> None:
        """Sets a replica's variables."""
        self._programs[program].replicas[worker].assign(values)

    def outputs(self, program: int) -> list[np.ndarray]:
        """Returns the outputs of the step that ended last."""
        if program in self._outputs:
            return [as_array(output) for output in self._outputs[program]]
        return [empty(output.tensor) for output in self._programs[program].source.outputs]

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns every worker's account."""
        with self._lock:
            for worker, (usage, account) in enumerate(zip(self._usage, self._worker_threads.accounts, strict=True)):
                usage.wait_s, usage.held_s = account.wait_s, account.held_s
                usage.delays.clear()
                usage.delays.update(self._delays.histogram(worker))
                usage.correction_sum, usage.num_corrected = self._delays.correction(worker)
            return [job_pb2.WorkerUsage.FromString(usage.SerializeToString()) for usage in self._usage]

    def _choose(self, worker: int, waiting: Sequence[Batch]) -> int:
        """Returns how many batches a worker takes: compatible ones, and at most its share of the queue."""
        first = waiting[0]
        most = min(
            self._strides[worker].number,
            self._programs[first.program].most_at_once,
            -(-len(waiting) // len(self._strides)),
        )
        alike = itertools.takewhile(first.goes_with, itertools.islice(waiting, most))
        return max(1, sum(1 for _ in alike))

    def _steps(self, worker: int, batches: Sequence[Batch]) -> float:
        """Runs in the worker's own thread; returns the seconds for which the staleness bound held it."""
        first = batches[0]
        stepped = self._programs[first.program].steps(worker, first.feed[worker], [batch.rows for batch in batches])
        for pushed in stepped.pushes:
            correction = sum(of_shard.correction_square for of_shard in pushed)
            gradient = sum(of_shard.gradient_square for of_shard in pushed)
            self._delays.add(worker, max(of_shard.delay for of_shard in pushed), correction, gradient)
        if stepped.pushes:
            self._account(self._usage[worker], stepped, sum(batch.num_samples for batch in batches))
        self._strides[worker].note(len(batches), stepped.pull_s + stepped.compute_s + stepped.push_s)
        self._outputs[first.program] = stepped.outputs
        if first.done is not None:
            first.done([as_array(output) for output in stepped.outputs])
        return stepped.held_s

    def _account(self, usage: job_pb2.WorkerUsage, stepped: Stepped, num_samples: int) -> None:
        with self._lock:
            usage.steps += len(stepped.pushes)
            usage.samples += num_samples
            usage.pull_s += stepped.pull_s
            usage.compute_s += stepped.compute_s
            usage.push_s += stepped.push_s
            usage.exchange_s += stepped.pull_s + stepped.push_s
            usage.exchanged_bytes += stepped.num_bytes
