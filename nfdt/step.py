"""A worker's step: one graph over the devices of the worker and of the shards.

Three calls (pull, computation, push) and what lies between them in Python took 2 of 18 core-milliseconds of a step of 1.9
million parameters on one host, and 11 of 30 over two. The graph is called for one step (`nfdt.single`), or for many
(`nfdt.loop`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fdt.program.step_program import shape_of
from fdt.v1 import program_pb2
from nfdt.devices import cpu_beside
from nfdt.feed import take
from nfdt.gradients import Gradients
from nfdt.link_semaphore import LinkSemaphore
from nfdt.replica import Computation
from nfdt.shard import Pushed, Shard, Snapshot
from nfdt.transfer import carried, travelling_dtype

# What a step that is called by itself says of its worker, before what each shard says of its push.
_OF_WORKER = 4


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The parameters as one worker was given them.

    Attributes:
        snapshots: Of every shard.
        optimizer: The optimizer variables that a step looks at.
    """

    snapshots: list[Snapshot]
    optimizer: list[tf.Tensor]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """Where the shards are."""
        return [*(tensor for snapshot in self.snapshots for tensor in snapshot.tensors), *self.optimizer]


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What the steps of one call came to.

    Attributes:
        outputs: Of the last step.
        pushes: Of each step, what became of its push to each shard.
        pull_s: Seconds of all of them.
        compute_s: Alike.
        push_s: Alike.
        held_s: Alike, in which the worker was too far ahead of others.
        num_bytes: That were pulled and pushed.
    """

    outputs: list[tf.Tensor]
    pushes: list[list[Pushed]]
    pull_s: float
    compute_s: float
    push_s: float
    held_s: float
    num_bytes: int

    @property
    def pushed(self) -> list[Pushed]:
        """What became of the last push."""
        return self.pushes[-1]


@dataclasses.dataclass(frozen=True)
class Times:
    """What a step tells of its worker, in a graph: float64 scalars.

    Attributes:
        began_s: When it did, by the clock of the worker's host.
        arrived_s: When it had the parameters.
        computed_s: When it had the gradients.
        num_row_bytes: How many bytes of rows it pushed.
    """

    began_s: tf.Tensor
    arrived_s: tf.Tensor
    computed_s: tf.Tensor
    num_row_bytes: tf.Tensor


@dataclasses.dataclass(frozen=True)
class InGraph:
    """A step, in a graph.

    Attributes:
        times: Its times.
        told: Of each shard, as `Shard.push_in_graph` has it.
        outputs: Of the step.
        latest: The parameters of each shard after its push, by `snapshot_signature`.
        ended: What else has to run.
    """

    times: Times
    told: list[tf.Tensor]
    outputs: list[tf.Tensor]
    latest: list[list[tf.Tensor]]
    ended: list[tf.Operation]


class Step:
    """Builds it in a graph: all workers of a device whose arrays are on the same host share one."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        computation: Computation,
        shards: Sequence[Shard],
        looked_at: Sequence[tf.Variable],
        devices: tuple[str, str],
        semaphore: LinkSemaphore,
        rounded: bool,
    ):
        """
        Args:
            source: The program.
            computation: Its first part.
            shards: All of them, wherever they are.
            looked_at: The optimizer variables that a computation looks at.
            devices: Of the worker, and of its arrays.
            semaphore: Of the link of the shards' host.
            rounded: Whether parameters and gradients travel between hosts as 16-bit floats.
        """
        self.source, self.computation, self.shards, self.looked_at = source, computation, shards, looked_at
        (self.device, self.arrays_device), self.semaphore, self._rounded = devices, semaphore, rounded
        snapshots = self.snapshot_signatures()
        gradients = [spec for shard in shards for spec in shard.snapshot_signature()[: shard.num_vectors]]
        # Both ways; of tables' gradients only those rows go that a batch has.
        self.num_bytes = sum(
            self._size(spec) * spec.shape.num_elements() for spec in tf.nest.flatten([snapshots, gradients])
        )

    def snapshot_signatures(self) -> list[list[tf.TensorSpec]]:
        """Returns what the tensors of each shard's snapshot are."""
        return [shard.snapshot_signature() for shard in self.shards]

    def optimizer_signature(self) -> list[tf.TensorSpec]:
        """Returns what the optimizer variables are that a computation looks at."""
        return [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.looked_at]

    def arrays_signature(self) -> list[tf.TensorSpec]:
        """Returns what the arrays are that a batch is taken from."""
        return [_array_spec(spec) for spec in self.source.batch]

    def pushes(self, told: np.ndarray) -> list[Pushed]:
        """Returns what became of a push.

        Args:
            told: float64 [shards * 4], of all shards, as `InGraph` has it.
        """
        rows = told.reshape(len(self.shards), -1).tolist()
        return [Pushed(int(delay), correction, gradient) for delay, _, correction, gradient in rows]

    def in_graph(
        self,
        rows: tf.Tensor,
        arrays: Sequence[tf.Tensor],
        versions: Sequence[tf.Tensor],
        snapshots: Sequence[Sequence[tf.Tensor]],
        pulled: Sequence[tf.Tensor],
        begins: Sequence[tf.Tensor] = (),
    ) -> InGraph:
        """Builds it.

        Args:
            rows: int64 [batch], where the arrays are.
            arrays: As the source has them.
            versions: Of each snapshot, int64 scalar, where the shard is.
            snapshots: Tensors of each.
            pulled: The optimizer variables that are looked at.
            begins: The pull has begun when the worker knows that these are there.
        """
        received = self.received(snapshots, pulled)
        with tf.device(cpu_beside(self.device)):
            with tf.control_dependencies(begins):
                began_s = tf.timestamp()
            with tf.control_dependencies([began_s, *received]):
                arrived_s = tf.timestamp()
        with tf.device(self.arrays_device):
            batch = _batch(self.source, arrays, rows)
        with tf.device(self.device):
            with tf.control_dependencies([arrived_s]):
                flat = tf.nest.flatten(self.computation.traced(*received, *batch))
            computed = self.computation.computed(flat)
            # Of a call that is inlined a control edge waits for the effects, and not for the values.
            gradients = [each.mapped(tf.identity) for each in computed.gradients]
        with tf.device(cpu_beside(self.device)):
            # Who has heard of a push may begin the worker's next step, so all that this one sets has to be set.
            with tf.control_dependencies([flat[0].op, *(tensor for each in gradients for tensor in each.tensors)]):
                computed_s = tf.timestamp()
            times = Times(began_s, arrived_s, computed_s, self._num_row_bytes(gradients))
        # Nothing is pushed before it is told when it was computed.
        with tf.control_dependencies([computed_s, *self.semaphore.push(self.device, computed_s)]):
            there = [self._carried(each, shard) for each, shard in zip(gradients, self.shards, strict=True)]
        told, latest = self._pushed(there, snapshots, versions)
        ended = self.semaphore.pushed(self.device, [tensor for each in there for tensor in each.tensors])
        ended += self.semaphore.pulled(self.device, [arrived_s])
        # The effects of a push have ended when it tells of itself.
        return InGraph(times, told, computed.outputs, latest, ended)

    def parted(self, numbers: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns rows and versions, each where it is needed.

        Args:
            numbers: int64 [shards + batch]: the snapshots' versions, then rows. One tensor, since each that goes to another
                host is a request of its own.
        """
        with tf.device(self.arrays_device):
            rows = numbers[len(self.shards) :]
        versions = []
        for number, shard in enumerate(self.shards):
            with tf.device(shard.device):
                versions.append(numbers[number])
        return rows, versions

    def told(self, made: InGraph, coordinator: str) -> list[tf.Tensor]:
        """Returns, in a graph, what `keep` takes of one step.

        Args:
            made: The step.
            coordinator: Device of the process that coordinates.
        """
        times = made.times
        with tf.device(cpu_beside(self.device)):
            of_worker = tf.stack([times.began_s, times.arrived_s, times.computed_s, times.num_row_bytes])
        with tf.device(coordinator):
            return [tf.concat([of_worker, *made.told], 0), *made.outputs, *tf.nest.flatten(made.latest)]

    def keep(self, told: np.ndarray, tensors: Sequence[tf.Tensor]) -> tuple[list[float], np.ndarray, list[tf.Tensor]]:
        """Has the shards note the parameters after a step.

        Args:
            told: The first of what `told` returned.
            tensors: The others.

        Returns:
            When it began, had the parameters and had the gradients, and bytes of rows; float64 [shards, 4], as `InGraph` has
            it; the outputs.
        """
        of_worker, of_shards = np.split(told, [_OF_WORKER])
        by_shard, rest = of_shards.reshape(len(self.shards), -1), list(tensors)
        outputs = [rest.pop(0) for _ in self.source.step.outputs]
        for shard, of_shard in zip(self.shards, by_shard, strict=True):
            shard.keep(of_shard, [rest.pop(0) for _ in shard.snapshot_signature()])
        return of_worker.tolist(), by_shard, outputs

    def received(self, snapshots: Sequence[Sequence[tf.Tensor]], optimizer: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns, in a graph, what a worker computes with where it is.

        Args:
            snapshots: Tensors of each, where the shards are.
            optimizer: The optimizer variables that are looked at, alike.
        """
        received = []
        for shard, snapshot in zip(self.shards, snapshots, strict=True):
            received += carried(snapshot, shard.device, self.device, self._rounded)
        for variable, value in zip(self.looked_at, optimizer, strict=True):
            received += carried([value], variable.device, self.device, self._rounded)
        return received

    def _carried(self, gradients: Gradients, shard: Shard) -> Gradients:
        """Returns gradients where the shard is."""
        if shard.device == self.device:
            # What has no device is the driver's, wherever that is.
            with tf.device(self.device):
                return gradients.mapped(tf.identity)
        # Each tensor that goes to another device is a request of its own.
        with tf.device(self.device):
            vectors = shard.joined(gradients.vectors)
        sent = [vectors, gradients.rows, gradients.extras]
        arrived = carried(tf.nest.flatten(sent), self.device, shard.device, self._rounded)
        vectors, rows, extras = tf.nest.pack_sequence_as(sent, arrived)
        with tf.device(shard.device):
            return Gradients(shard.parted(vectors), rows, extras)

    def _pushed(
        self, gradients: Sequence[Gradients], snapshots: Sequence[Sequence[tf.Tensor]], versions: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
        """Returns what each shard tells of its push, and its parameters after it."""
        told, latest = [], []
        for shard, pushed, then, version in zip(self.shards, gradients, snapshots, versions, strict=True):
            of_shard, parameters = shard.push_in_graph(pushed, then, version)
            told.append(of_shard)
            latest.append(parameters)
        return told, latest

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
