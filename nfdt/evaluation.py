"""Runs steps that train nothing, as those of a validation: each worker computes with a copy of its own, without servers."""

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fdt.program.update.cut import cut
from fdt.v1 import program_pb2
from nfdt.components import Components
from nfdt.feed import Arrays
from nfdt.layout import Layout
from nfdt.rebound import Rebound
from nfdt.replica import Computation, Replica
from nfdt.stages import divide
from nfdt.step import Pulled, Stepped, array_spec, batch_of


class Evaluation:
    """A program without gradients; it has the interface of `nfdt.servers.ParameterServers` that running a program needs.

    Attributes:
        source: The program.
        replicas: Each worker's variables.
        most_at_once: How many steps a worker makes in one call.
    """

    most_at_once = 1

    def __init__(self, source: program_pb2.StepProgram, worker_devices: Sequence[str]) -> None:
        """Builds the replicas; variables are zero until assigned. Call it only while no step of any program runs.

        Args:
            source: The program.
            worker_devices: One for each worker.
        """
        self.source = source
        # A single worker's result is plain Keras's bit for bit.
        as_traced = len(worker_devices) == 1
        layout = Layout(shards=(), shared=(), still=())
        parts = cut(source)
        self._computation = Computation(source, parts, divide(source, parts), layout, worker_devices[0], as_traced)
        self.replicas = [self._computation.replica(device, i == 0) for i, device in enumerate(worker_devices)]
        # A worker's step, and what TensorFlow makes of an operation with inputs on another host.
        Components.of_process().expect(worker_devices, (), functions=2)
        # A worker's thread may be about to begin a step while another ends one.
        self._alone = [threading.Lock() for _ in worker_devices]
        self._lock = threading.Lock()
        # By the devices of a worker and of its arrays.
        self._calls: dict[tuple[str, str], Rebound] = {}

    def steps(self, worker: int, arrays: Arrays, rows: Sequence[np.ndarray], pulled: Pulled | None = None) -> Stepped:
        """Makes one step; see `ParameterServers.steps`.

        Args:
            worker: The worker's index.
            arrays: The arrays that hold the batch.
            rows: int64 [batch], one.
            pulled: None: there is nothing to pull.
        """
        (only,), replica = rows, self.replicas[worker]
        call = self._call(replica, arrays)
        with self._alone[worker]:
            began_s = time.perf_counter()
            with tf.device(arrays.device):
                given = [tf.constant(only, tf.int64), *arrays.tensors]
            outputs = call(replica.resources, given)[: len(self.source.outputs)]
            return Stepped(outputs, [], 0.0, time.perf_counter() - began_s, 0.0, 0.0, 0)

    def read(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns values of variables that are equal on all workers."""
        return self.replicas[0].read(indices)

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables on every worker."""
        for replica in self.replicas:
            replica.assign(values)

    def _call(self, replica: Replica, arrays: Arrays) -> Rebound:
        with self._lock:
            key = replica.device, arrays.device
            if key not in self._calls:
                specs = [array_spec(each) for each in self.source.batch]

                def step(rows: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
                    with tf.device(key[1]):
                        batch = batch_of(self.source, tensors, rows)
                    with tf.device(key[0]):
                        results: list[tf.Tensor] = tf.nest.flatten(self._computation.traced(*batch))
                        # A step may return nothing but what it adds to metrics; a call has to have a result.
                        return [*results, tf.constant(0)]

                function = tf.function(step, autograph=False)
                concrete = function.get_concrete_function(tf.TensorSpec([None], tf.int64), *specs)
                self._calls[key] = self._computation.rebound(concrete)
            return self._calls[key]
