"""A worker's step: one graph over the devices of the worker and of the shards, called once a step.

Three calls (pull, computation, push) and what lies between them in Python took 2 of 18 core-milliseconds of a step of 1.9
million parameters on one host, and 11 of 30 over two.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from fdt.program import shape_of
from fdt.v1 import program_pb2
from nfdt.devices import cpu_beside, driver_cpu
from nfdt.feed import Arrays, take
from nfdt.gradients import Gradients
from nfdt.replica import Computation, Replica
from nfdt.shard import Pushed, Shard, Snapshot
from nfdt.transfer import carried, travelling_dtype
from nfdt.turns import Turns

# What a step says of its worker, before what each shard says of its push: when it began, had the parameters and had computed
# (seconds by the clock of the worker's host), and how many bytes of rows it pushed.
_OWN_NUMBERS = 4


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The parameters as one worker was given them.

    Attributes:
        snapshots: Of every shard.
        optimizer: The optimizer variables that a step looks at.
        arrived: Tensors of both beside the worker; None if they travel in the step.
    """

    snapshots: list[Snapshot]
    optimizer: list[tf.Tensor]
    arrived: list[tf.Tensor] | None = None

    @property
    def tensors(self) -> list[tf.Tensor]:
        """Where the shards are."""
        return [*(tensor for snapshot in self.snapshots for tensor in snapshot.tensors), *self.optimizer]


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What one step of one worker came to."""

    outputs: list[tf.Tensor]
    pushed: list[Pushed]
    pull_s: float
    compute_s: float
    push_s: float
    num_bytes: int


class Step:
    """Traced once for all workers of a device whose arrays are on the same host.

    Clocks of hosts may differ: seconds are differences of one clock, and the push is what is left of the whole.
    """

    def __init__(
        self,
        source: program_pb2.StepProgram,
        computation: Computation,
        shards: Sequence[Shard],
        looked_at: Sequence[tf.Variable],
        devices: tuple[str, str],
        turns: Turns,
        rounded: bool,
        prefetch: bool,
    ):
        """Traces.

        Args:
            source: The program.
            computation: Its first part.
            shards: All of them, wherever they are.
            looked_at: The optimizer variables that a computation looks at.
            devices: Of the worker, and of its arrays.
            turns: On the link of the shards' host.
            rounded: Whether parameters and gradients travel between hosts as 16-bit floats.
            prefetch: Whether what is pulled is beside the worker before a step begins.
        """
        self._source, self._computation, self._shards, self._looked_at = source, computation, shards, looked_at
        (self._device, self._arrays_device), self._turns, self._rounded = devices, turns, rounded
        self._driver = driver_cpu(self._device)
        snapshots = [shard.snapshot_signature() for shard in shards]
        gradients = [spec for shard in shards for spec in shard.snapshot_signature()[: shard.num_vectors]]
        # Both ways; of tables' gradients only those rows go that a batch has.
        self._num_bytes = sum(
            self._size(spec) * spec.shape.num_elements() for spec in tf.nest.flatten([snapshots, gradients])
        )
        optimizer = [tf.TensorSpec(v.shape, v.dtype) for v in looked_at]
        all_of_it = tf.nest.flatten([snapshots, optimizer])
        self._fetch = tf.compat.v1.wrap_function(self._fetched, all_of_it) if prefetch else None
        signature = [
            tf.TensorSpec([None], tf.int64),
            [_array_spec(spec) for spec in source.batch],
            snapshots,
            all_of_it if prefetch else optimizer,
        ]
        # Not `tf.function`: of that, every output waits for the effects on all hosts and goes through the driver's.
        self._call = computation.rebound(tf.compat.v1.wrap_function(self._run, signature))

    def fetch(self, pull: Callable[[], Pulled]) -> Pulled:
        """Brings what a later step is to compute with beside the worker; only of one that is made so.

        Args:
            pull: Returns it.
        """
        assert self._fetch is not None
        self._turns.pull(self._device)
        pulled = pull()
        with tf.device(self._driver):
            return dataclasses.replace(pulled, arrived=self._fetch(*pulled.tensors))

    def __call__(self, replica: Replica, pull: Callable[[], Pulled], arrays: Arrays, rows: np.ndarray) -> Stepped:
        """Pulls, takes rows of arrays, computes and pushes.

        Args:
            replica: Whose step it is.
            pull: Returns what to compute with.
            arrays: What to take rows from.
            rows: int64 [batch].
        """
        began_s = time.perf_counter()
        if self._fetch is None:
            self._turns.pull(self._device)
        pulled = pull()
        waited_s = time.perf_counter() - began_s
        snapshots = [tensor for snapshot in pulled.snapshots for tensor in snapshot.tensors]
        numbers = np.concatenate([[snapshot.version for snapshot in pulled.snapshots], rows])
        with tf.device(self._driver):
            arrived = pulled.optimizer if pulled.arrived is None else pulled.arrived
            given = [tf.constant(numbers, tf.int64), *arrays.tensors, *snapshots, *arrived]
            told, *rest = self._call(replica.resources, given)
        own, of_shards = np.split(told.numpy(), [_OWN_NUMBERS])
        outputs = [rest.pop(0) for _ in self._source.step.outputs]
        pushed = []
        for shard, of_shard in zip(self._shards, of_shards.reshape(len(self._shards), -1), strict=True):
            pushed.append(shard.pushed(of_shard, [rest.pop(0) for _ in shard.snapshot_signature()]))
        worker_began_s, arrived_s, computed_s, num_bytes = own.tolist()
        pull_s, compute_s = waited_s + arrived_s - worker_began_s, computed_s - arrived_s
        push_s = max(0.0, time.perf_counter() - began_s - pull_s - compute_s)
        return Stepped(outputs, pushed, pull_s, compute_s, push_s, self._num_bytes + int(num_bytes))

    def _run(
        self,
        numbers: tf.Tensor,
        arrays: Sequence[tf.Tensor],
        snapshots: Sequence[Sequence[tf.Tensor]],
        pulled: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns what a step tells, the outputs and the parameters after it.

        Args:
            numbers: int64: versions, then rows. One tensor, since each that goes to another host is a request of its own; so
                it is taken apart where it is needed.
            arrays: As the source has them.
            snapshots: Tensors of each.
            pulled: The optimizer variables that are looked at; of a step for which everything was brought beside the worker
                all that it computes with.
        """
        received = list(pulled) if self._fetch is not None else self._received(snapshots, pulled)
        with tf.device(cpu_beside(self._device)):
            began_s = tf.timestamp()
            with tf.control_dependencies([began_s, *received]):
                arrived_s = tf.timestamp()
        with tf.device(self._arrays_device):
            batch = _batch(self._source, arrays, numbers[len(self._shards) :])
        with tf.device(self._device):
            with tf.control_dependencies([arrived_s]):
                flat = tf.nest.flatten(self._computation.traced(*received, *batch))
            computed = self._computation.computed(flat)
            # Of a call that is inlined a control edge waits for the effects, and not for the values.
            gradients = [each.mapped(tf.identity) for each in computed.gradients]
        with tf.device(cpu_beside(self._device)):
            with tf.control_dependencies([tensor for each in gradients for tensor in each.tensors]):
                computed_s = tf.timestamp()
            own = tf.stack([began_s, arrived_s, computed_s, self._num_row_bytes(gradients)])
        with tf.control_dependencies(self._turns.push(self._device, computed_s)):
            there = [self._carried(each, shard) for each, shard in zip(gradients, self._shards, strict=True)]
        told, tensors = self._pushed(there, snapshots, numbers)
        ended = self._turns.pushed(self._device, [tensor for each in there for tensor in each.tensors])
        if self._fetch is None:
            ended += self._turns.pulled(self._device, [arrived_s])
        # What else has to run; the effects of a push have ended when it tells of itself.
        tf.compat.v1.get_default_graph().control_outputs.extend([flat[0].op, *ended])
        with tf.device(self._driver):
            return [tf.concat([own, *told], 0), *computed.outputs, *tensors]

    def _fetched(self, *pulled: tf.Tensor) -> list[tf.Tensor]:
        rest = list(pulled)
        snapshots = [[rest.pop(0) for _ in shard.snapshot_signature()] for shard in self._shards]
        received = self._received(snapshots, rest)
        ended = self._turns.pulled(self._device, received)
        tf.compat.v1.get_default_graph().control_outputs.extend(ended)
        return received

    def _received(self, snapshots: Sequence[Sequence[tf.Tensor]], optimizer: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        received = []
        for shard, snapshot in zip(self._shards, snapshots, strict=True):
            received += carried(snapshot, shard.device, self._device, self._rounded)
        for variable, value in zip(self._looked_at, optimizer, strict=True):
            received += carried([value], variable.device, self._device, self._rounded)
        return received

    def _carried(self, gradients: Gradients, shard: Shard) -> Gradients:
        """Returns gradients where the shard is."""
        if shard.device == self._device:
            return gradients
        # Each tensor that goes to another device is a request of its own.
        with tf.device(self._device):
            vectors = shard.joined(gradients.vectors)
        sent = [vectors, gradients.rows, gradients.extras]
        arrived = carried(tf.nest.flatten(sent), self._device, shard.device, self._rounded)
        vectors, rows, extras = tf.nest.pack_sequence_as(sent, arrived)
        with tf.device(shard.device):
            return Gradients(shard.parted(vectors), rows, extras)

    def _pushed(
        self, gradients: Sequence[Gradients], snapshots: Sequence[Sequence[tf.Tensor]], numbers: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns what each shard tells of its push, and the parameters of all."""
        told, tensors = [], []
        for number, shard in enumerate(self._shards):
            with tf.device(shard.device):
                version = numbers[number]
            of_shard, latest = shard.push_in_graph(gradients[number], snapshots[number], version)
            told.append(of_shard)
            tensors += latest
        return told, tensors

    def _num_row_bytes(self, gradients: Sequence[Gradients]) -> tf.Tensor:
        pushed = [tensor for of_shard in gradients for pair in of_shard.rows for tensor in pair]
        sizes = [tf.cast(tf.size(tensor), tf.float64) * self._size(tensor) for tensor in pushed]
        return tf.add_n([tf.zeros([], tf.float64), *sizes])

    def _size(self, tensor: tf.Tensor | tf.TensorSpec) -> int:
        return int(travelling_dtype(tensor, self._rounded).size)


def _batch(source: program_pb2.StepProgram, arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor]:
    batch = take(arrays, rows)
    for taken, spec in zip(batch, source.batch, strict=True):
        taken.set_shape(shape_of(spec))
    return batch


def _array_spec(spec: program_pb2.Tensor) -> tf.TensorSpec:
    shape = shape_of(spec)
    return tf.TensorSpec(shape if shape.rank is None else [None, *shape[1:]], spec.dtype)
