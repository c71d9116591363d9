"""Runs steps over several hosts, one per call; a worker's next call is made before the last one has ended.

A message between two hosts waits behind what is queued for the link. A step that is called after the one before has ended
waits for three messages (the end of that step, the call, the request for parameters), and the links are idle meanwhile.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from nfdt.devices import cpu_beside, driver_cpu
from nfdt.feed import Arrays
from nfdt.next_parameters import NextParameters, leave, take
from nfdt.replica import Replica
from nfdt.staleness_bound import StalenessBound
from nfdt.step import Pulled, Step, Stepped


class Chained:
    """A step that is called once per batch and begins when the worker's previous step has pushed.

    Each server sends its parameters as soon as it has applied the worker's push; it does not wait for other servers.
    """

    def __init__(self, step: Step, gate: StalenessBound):
        """Traces.

        Args:
            step: What is called. It reads no optimizer variable, and no worker waits for the link semaphore.
            gate: The workers' staleness bound, without a limit.
        """
        self._step, self._gate = step, gate
        self._coordinator = driver_cpu(step.device)
        handles = [tf.TensorSpec([], tf.resource)] * len(step.shards) * 2
        signature = [tf.TensorSpec([None], tf.int64), step.arrays_signature(), handles]
        self._call = step.computation.rebound(tf.compat.v1.wrap_function(self._run, signature))

    def __call__(
        self,
        worker: int,
        replica: Replica,
        handover: NextParameters,
        pulled: Pulled | None,
        pull: Callable[[], Pulled],
        arrays: Arrays,
        rows: np.ndarray,
    ) -> Stepped:
        """Pulls, takes rows of arrays, computes and pushes.

        Args:
            worker: The worker's index.
            replica: The worker's replica.
            handover: The worker's queued next parameters.
            pulled: The parameters to compute with; None for those after the last push, or the shards' current ones.
            pull: Returns the shards' current parameters.
            arrays: What to take rows from.
            rows: int64 [batch].
        """
        self._gate.enter(worker)
        called_s = time.perf_counter()
        try:
            handles = handover.begin(pulled, pull)
            with tf.device(self._coordinator):
                given = [tf.constant(rows, tf.int64), *arrays.tensors, *handles]
                told, *rest = self._call(replica.resources, given)
                numbers = told.numpy()
        except Exception as error:
            # A step that waits for this one fails too; the first error is the cause, and is the one to raise.
            raise handover.fail(error) from None
        (began_s, arrived_s, computed_s, row_bytes), by_shard, outputs = self._step.keep(numbers, rest)
        self._gate.leave(worker)
        whole_s = time.perf_counter() - handover.end([int(version) for version in by_shard[:, 1]], called_s)
        pull_s, compute_s = arrived_s - began_s, computed_s - arrived_s
        push_s = max(0.0, whole_s - pull_s - compute_s)
        num_bytes = self._step.num_bytes + int(row_bytes)
        return Stepped(outputs, [self._step.pushes(by_shard)], pull_s, compute_s, push_s, 0.0, num_bytes)

    def _run(self, rows: tf.Tensor, arrays: Sequence[tf.Tensor], handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns a step's numbers (`Step.told`), its outputs and the parameters after its push.

        Args:
            rows: int64 [batch].
            arrays: As for `Step.in_graph`.
            handles: As `NextParameters.begin` returns them.
        """
        shards = self._step.shards
        versions, snapshots = zip(*map(take, shards, handles[: len(shards)]), strict=True)
        with tf.device(cpu_beside(self._step.device)):
            first = tf.identity(versions[0])
        made = self._step.in_graph(rows, arrays, versions, snapshots, [], [first])
        left = list(map(leave, shards, handles[len(shards) :], made.told, made.latest))
        tf.compat.v1.get_default_graph().control_outputs.extend([*made.ended, *left])
        return self._step.told(made, self._coordinator)
