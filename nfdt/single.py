"""Runs steps one per call, for workers and servers on any hosts."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from nfdt.devices import driver_cpu
from nfdt.feed import Arrays
from nfdt.replica import Replica
from nfdt.staleness_bound import StalenessBound
from nfdt.step import Pulled, Step, Stepped


class Single:
    """A step that is called once for each batch.

    Hosts' clocks may differ, so each time is a difference of one clock; the push's time is the rest of the whole call.
    """

    def __init__(self, step: Step, gate: StalenessBound):
        """Traces.

        Args:
            step: What is called.
            gate: The workers' staleness bound.
        """
        self._step, self._gate = step, gate
        self._coordinator = driver_cpu(step.device)
        snapshots, optimizer = step.snapshot_signatures(), step.optimizer_signature()
        signature = [
            tf.TensorSpec([None], tf.int64),
            step.arrays_signature(),
            snapshots,
            optimizer,
        ]
        # Not `tf.function`: each of its outputs waits for the effects on all hosts and passes through the coordinator's.
        self._call = step.computation.rebound(tf.compat.v1.wrap_function(self._run, signature))

    def __call__(
        self, worker: int, replica: Replica, pull: Callable[[], Pulled], arrays: Arrays, rows: np.ndarray
    ) -> Stepped:
        """Pulls, takes rows of arrays, computes and pushes.

        Args:
            worker: The worker's index.
            replica: The worker's replica.
            pull: Returns the parameters to compute with.
            arrays: What to take rows from.
            rows: int64 [batch].
        """
        held_s = self._gate.enter(worker)
        began_s = time.perf_counter()
        self._step.semaphore.pull(self._step.device)
        pulled = pull()
        waited_s = time.perf_counter() - began_s
        snapshots = [tensor for snapshot in pulled.snapshots for tensor in snapshot.tensors]
        numbers = np.concatenate([[snapshot.version for snapshot in pulled.snapshots], rows])
        with tf.device(self._coordinator):
            given = [tf.constant(numbers, tf.int64), *arrays.tensors, *snapshots, *pulled.optimizer]
            told, *rest = self._call(replica.resources, given)
        (worker_began_s, arrived_s, computed_s, row_bytes), by_shard, outputs = self._step.keep(told.numpy(), rest)
        self._gate.leave(worker)
        pull_s, compute_s = waited_s + arrived_s - worker_began_s, computed_s - arrived_s
        push_s = max(0.0, time.perf_counter() - began_s - pull_s - compute_s)
        num_bytes = self._step.num_bytes + int(row_bytes)
        return Stepped(outputs, [self._step.pushes(by_shard)], pull_s, compute_s, push_s, held_s, num_bytes)

    def _run(
        self,
        numbers: tf.Tensor,
        arrays: Sequence[tf.Tensor],
        snapshots: Sequence[Sequence[tf.Tensor]],
        pulled: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns a step's numbers (`Step.told`), its outputs and the parameters after its push.

        Args:
            numbers: As for `Step.parted`.
            arrays: As for `Step.in_graph`.
            snapshots: As for `Step.in_graph`.
            pulled: As for `Step.in_graph`.
        """
        rows, versions = self._step.parted(numbers)
        made = self._step.in_graph(rows, arrays, versions, snapshots, pulled)
        tf.compat.v1.get_default_graph().control_outputs.extend(made.ended)
        return self._step.told(made, self._coordinator)
