"""A worker's step where the parameters are on its own host: one graph, called once a step.

Three calls (pull, computation, push) and what lies between them in Python took 2 of 18 core-milliseconds of a step of 1.9
million parameters, and as much again in waits of threads for each other.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fdt.program import shape_of
from fdt.v1 import program_pb2
from nfdt.replica import Computation, Replica
from nfdt.shard import Gradients, Pushed, Shard, Snapshot

# What a step says of itself, before what each shard says of its push: when it began, had computed and had pushed (seconds), and
# how many bytes of rows it pushed.
_OWN_NUMBERS = 4


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The parameters as one worker was given them.

    Attributes:
        snapshots: Of every shard.
        optimizer: The optimizer variables that a step looks at.
    """

    snapshots: list[Snapshot]
    optimizer: list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What one step of one worker came to."""

    outputs: list[tf.Tensor]
    pushed: list[Pushed]
    pull_s: float
    compute_s: float
    push_s: float
    num_bytes: int


class LocalStep:
    """Traced once for all workers of a program."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        computation: Computation,
        shards: Sequence[Shard],
        looked_at: Sequence[tf.Variable],
    ):
        """Traces.

        Args:
            source: The program.
            computation: Its first part.
            shards: On this host.
            looked_at: The optimizer variables that a computation looks at.
        """
        self._source, self._computation, self._shards = source, computation, shards
        snapshots = [shard.snapshot_signature() for shard in shards]
        gradients = [spec for shard in shards for spec in shard.gradients_signature()[: shard.num_vectors]]
        # Both ways; of tables' gradients only those rows go that a batch has.
        self._num_bytes = sum(_num_bytes(spec) for spec in [*tf.nest.flatten(snapshots), *gradients])
        concrete = tf.function(self._run, autograph=False).get_concrete_function(
            tf.TensorSpec([None], tf.int64),
            [_array_spec(spec) for spec in source.batch],
            snapshots,
            tf.TensorSpec([len(shards)], tf.int64),
            [tf.TensorSpec(v.shape, v.dtype) for v in looked_at],
        )
        self._call = computation.rebound(concrete)

    def __call__(self, replica: Replica, pulled: Pulled, arrays: Sequence[tf.Tensor], rows: np.ndarray) -> Stepped:
        """Takes rows of arrays, computes and pushes.

        Args:
            replica: Whose step it is.
            pulled: What to compute with.
            arrays: [num_samples, ...] each.
            rows: int64 [batch].
        """
        snapshots = [tensor for snapshot in pulled.snapshots for tensor in snapshot.tensors]
        versions = tf.constant([snapshot.version for snapshot in pulled.snapshots], tf.int64)
        given = [tf.constant(rows, tf.int64), *arrays, *snapshots, versions, *pulled.optimizer]
        with tf.device(replica.device):
            told, *rest = self._call(replica.resources, given)
        own, of_shards = np.split(told.numpy(), [_OWN_NUMBERS])
        outputs = [rest.pop(0) for _ in self._source.step.outputs]
        pushed = []
        for shard, numbers in zip(self._shards, of_shards.reshape(len(self._shards), -1), strict=True):
            pushed.append(shard.pushed(numbers, [rest.pop(0) for _ in shard.snapshot_signature()]))
        began_s, computed_s, pushed_s, num_bytes = own.tolist()
        return Stepped(
            outputs, pushed, 0.0, computed_s - began_s, pushed_s - computed_s, self._num_bytes + int(num_bytes)
        )

    def _run(
        self,
        rows: tf.Tensor,
        arrays: Sequence[tf.Tensor],
        snapshots: Sequence[Sequence[tf.Tensor]],
        versions: tf.Tensor,
        optimizer: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        began_s = tf.timestamp()
        with tf.control_dependencies([began_s]):
            batch = _batch(self._source, arrays, rows)
            flat = self._computation.traced(*tf.nest.flatten([*snapshots, optimizer]), *batch)
        computed = self._computation.computed(tf.nest.flatten(flat))
        # Of a call that is inlined a control edge waits for the effects, and not for the values.
        values = [[tf.identity(tensor) for tensor in _values(gradients)] for gradients in computed.gradients]
        with tf.control_dependencies(tf.nest.flatten(values)):
            computed_s = tf.timestamp()
        told, tensors = [], []
        with tf.control_dependencies([computed_s]):
            for number, shard in enumerate(self._shards):
                numbers, latest = shard.push_in_graph(values[number], snapshots[number], versions[number])
                told.append(numbers)
                tensors += latest
        with tf.control_dependencies(told):
            pushed_s = tf.timestamp()
        own = tf.stack([began_s, computed_s, pushed_s, _num_row_bytes(computed.gradients)])
        return [tf.concat([own, *told], 0), *computed.outputs, *tensors]


def _batch(source: program_pb2.StepProgram, arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor]:
    batch = []
    with tf.device("/CPU:0"):
        for array, spec in zip(arrays, source.batch, strict=True):
            taken = tf.gather(array, rows)
            taken.set_shape(shape_of(spec))
            batch.append(taken)
    return batch


def _values(gradients: Gradients) -> list[tf.Tensor]:
    return [*gradients.vectors, *(tensor for pair in gradients.rows for tensor in pair), *gradients.extras]


def _num_row_bytes(gradients: Sequence[Gradients]) -> tf.Tensor:
    pushed = [tensor for of_shard in gradients for pair in of_shard.rows for tensor in pair]
    sizes = [tf.cast(tf.size(tensor), tf.float64) * tensor.dtype.size for tensor in pushed]
    return tf.add_n([tf.zeros([], tf.float64), *sizes])


def _num_bytes(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements()) * int(spec.dtype.size)


def _array_spec(spec: program_pb2.Tensor) -> tf.TensorSpec:
    shape = shape_of(spec)
    return tf.TensorSpec(shape if shape.rank is None else [None, *shape[1:]], spec.dtype)
