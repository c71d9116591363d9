"""Runs many steps per call, for workers on the host of all servers.

Each call makes as many steps as take a tenth of a second; no Python runs between them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.program.packing import empty
from fdt.program.step_program import shape_of
from nfdt.clock import now_s
from nfdt.devices import cpu_beside
from nfdt.feed import Arrays
from nfdt.replica import Replica
from nfdt.staleness_bound import StalenessBound
from nfdt.step import Pulled, Step, Stepped

# With more, the progress shown would lag behind the workers.
MOST_AT_ONCE = 64
# How many numbers a step reports for its worker, before those for each shard: seconds held, pulling, computing and pushing, and
# bytes of rows.
_OF_WORKER = 5


class Loop:
    """A graph in which a worker pulls, computes and pushes for each batch of a call."""

    def __init__(self, step: Step, gate: StalenessBound):
        """Traces.

        Args:
            step: What is repeated.
            gate: The workers' staleness bound.
        """
        self._step, self._gate = step, gate
        signature = [
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, None], tf.int64),
            step.arrays_signature(),
            step.snapshot_signatures(),
        ]
        # What is not the worker's computation is bookkeeping of a few numbers, which a GPU would only delay.
        with tf.device(cpu_beside(step.device)):
            self._call = step.computation.rebound(tf.compat.v1.wrap_function(self._run, signature))

    def __call__(
        self,
        worker: int,
        replica: Replica,
        pulled: Pulled | None,
        pull: Callable[[], Pulled],
        arrays: Arrays,
        rows: Sequence[np.ndarray],
    ) -> Stepped:
        """Makes steps.

        Args:
            worker: The worker's index.
            replica: The worker's replica.
            pulled: The parameters for the first step; None for the shards' current ones when it begins.
            pull: Returns the shards' current parameters.
            arrays: What to take rows from.
            rows: int64 [batch] for each step, of one length.
        """
        snapshots = (pulled or pull()).snapshots
        numbers = [worker, int(pulled is None), *(snapshot.version for snapshot in snapshots)]
        tensors = [tensor for snapshot in snapshots for tensor in snapshot.tensors]
        with tf.device(cpu_beside(self._step.device)):
            given = [tf.constant(numbers, tf.int64), tf.constant(np.stack(rows), tf.int64), *arrays.tensors, *tensors]
        told, *rest = self._call(replica.resources, given)
        of_workers, of_shards = np.split(told.numpy(), [_OF_WORKER], axis=1)
        outputs = [rest.pop(0) for _ in self._step.source.step.outputs]
        for shard, of_shard in zip(self._step.shards, np.split(of_shards[-1], len(self._step.shards)), strict=True):
            shard.keep(of_shard, [rest.pop(0) for _ in shard.snapshot_signature()])
        held_s, pull_s, compute_s, push_s, row_bytes = of_workers.sum(axis=0).tolist()
        num_bytes = len(rows) * self._step.num_bytes + int(row_bytes)
        return Stepped(outputs, [*map(self._step.pushes, of_shards)], pull_s, compute_s, push_s, held_s, num_bytes)

    def _run(
        self,
        numbers: tf.Tensor,
        rows: tf.Tensor,
        arrays: Sequence[tf.Tensor],
        snapshots: Sequence[Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Returns each step's numbers, [steps, ...], and the outputs of the last step and the parameters after it.

        Args:
            numbers: int64: the worker, whether it may pull first, versions of the snapshots.
            rows: int64 [steps, batch].
            arrays: As for `Step.in_graph`.
            snapshots: As for `Step.in_graph`.
        """
        outputs = self._step.source.outputs
        length = _OF_WORKER + 4 * len(self._step.shards)
        told = tf.TensorArray(tf.float64, tf.shape(rows)[0], element_shape=[length])
        variables = (
            tf.constant(0),
            told,
            numbers[1] > 0,
            numbers[2:],
            [tf.constant(empty(output.tensor)) for output in outputs],
            snapshots,
        )
        shapes = (
            tf.TensorShape([]),
            tf.TensorShape(None),
            tf.TensorShape([]),
            tf.TensorShape([len(self._step.shards)]),
            [shape_of(output.tensor) for output in outputs],
            tf.nest.map_structure(lambda spec: spec.shape, self._step.snapshot_signatures()),
        )
        _, told, _, _, latest_outputs, latest = tf.while_loop(
            lambda number, *_: number < tf.shape(rows)[0],
            lambda *variables: self._body(numbers[0], rows, arrays, *variables),
            variables,
            shape_invariants=shapes,
            # A step begins when the one before has ended.
            parallel_iterations=1,
        )
        return [told.stack(), *latest_outputs, *tf.nest.flatten(latest)]

    def _body(
        self,
        worker: tf.Tensor,
        rows: tf.Tensor,
        arrays: Sequence[tf.Tensor],
        number: tf.Tensor,
        told: tf.TensorArray,
        may_pull: tf.Tensor,
        versions: tf.Tensor,
        outputs: Sequence[tf.Tensor],
        snapshots: Sequence[Sequence[tf.Tensor]],
    ) -> tuple[Any, ...]:
        """Makes step `number`; returns the loop variables for the next one."""
        beside = cpu_beside(self._step.device)
        with tf.device(beside):
            held_s = self._gate.enter_in_graph(worker)
            with tf.control_dependencies([held_s]):
                entered_s = now_s()
        with tf.control_dependencies([entered_s]):
            now = tf.stack([shard.version_in_graph() for shard in self._step.shards])
        # After its own push a worker has the latest parameters, unless others have pushed since.
        has_to_pull = tf.logical_and(may_pull, tf.reduce_any(now != versions))
        pulled = tf.cond(has_to_pull, self._pull, lambda: (versions, snapshots))
        versions, snapshots = pulled
        with tf.control_dependencies(tf.nest.flatten(pulled)):
            optimizer = [variable.read_value() for variable in self._step.looked_at]
        batch, pulled_versions = self._step.parted(tf.concat([versions, rows[number]], 0))
        made = self._step.in_graph(batch, arrays, pulled_versions, snapshots, optimizer)
        times = made.times
        with tf.device(beside):
            with tf.control_dependencies([*made.ended, *made.told]):
                ended_s = now_s()
            with tf.control_dependencies([ended_s]):
                left = self._gate.leave_in_graph(worker)
            of_worker = [
                held_s,
                times.arrived_s - entered_s,
                times.computed_s - times.arrived_s,
                ended_s - times.computed_s,
                times.num_row_bytes,
            ]
            with tf.control_dependencies([left]):
                told = told.write(number, tf.concat([tf.stack(of_worker), *made.told], 0))
        versions = tf.stack([tf.cast(of_shard[1], tf.int64) for of_shard in made.told])
        return number + 1, told, tf.constant(True), versions, made.outputs, made.latest

    def _pull(self) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
        versions, snapshots = zip(*(shard.pull_in_graph() for shard in self._step.shards), strict=True)
        return tf.stack(versions), list(snapshots)
