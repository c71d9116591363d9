"""Builds a worker's step: one graph over the devices of the worker and of the shards.

Three calls (pull, computation, push) and the Python between them took 2 of the 18 core-milliseconds of a step with 1.9
million parameters on one host, and 11 of 30 over two. One call of the graph makes one step (`nfdt.single`) or many
(`nfdt.loop`).
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from fdt.program.step_program import shape_of
from fdt.v1 import program_pb2
from nfdt.clock import now_s
from nfdt.devices import cpu_beside
from nfdt.feed import take
from nfdt.gradients import Gradients
from nfdt.link_semaphore import LinkSemaphore
from nfdt.replica import Computation
from nfdt.row_transfer import Fetched, Part, fetch
from nfdt.shard import Pushed, Shard, Snapshot
from nfdt.transfer import carried, travelling_dtype

T = TypeVar("T")
# How many numbers a single step reports for its worker, before those for each shard.
_OF_WORKER = 4


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The parameters as one worker pulled them.

    Attributes:
        snapshots: One for each shard.
        optimizer: The values of the optimizer variables that a step reads.
    """

    snapshots: list[Snapshot]
    optimizer: list[tf.Tensor]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """All tensors, on the shards' devices."""
        return [*(tensor for snapshot in self.snapshots for tensor in snapshot.tensors), *self.optimizer]


@dataclasses.dataclass(frozen=True)
class Stepped:
    """The results of one call's steps.

    Attributes:
        outputs: The last step's outputs.
        pushes: For each step, the results of its pushes, by shard.
        pull_s: Seconds that all steps pulled.
        compute_s: Seconds that they computed.
        push_s: Seconds that they pushed.
        held_s: Seconds that the staleness bound held the worker.
        num_bytes: Bytes pulled and pushed.
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
        """The results of the last step's pushes."""
        return self.pushes[-1]


@dataclasses.dataclass(frozen=True)
class Times:
    """The numbers that a step reports for its worker, in a graph: float64 scalars.

    Attributes:
        began_s: When the step began, by the clock of the worker's host.
        arrived_s: When the worker had the parameters.
        computed_s: When the worker had the gradients.
        num_row_bytes: How many bytes of tables' rows it pulled, and of sparse gradients it pushed.
    """

    began_s: tf.Tensor
    arrived_s: tf.Tensor
    computed_s: tf.Tensor
    num_row_bytes: tf.Tensor


@dataclasses.dataclass(frozen=True)
class InGraph:
    """A step, in a graph.

    Attributes:
        times: The step's times.
        told: For each shard, the numbers that `Shard.push_in_graph` returned.
        outputs: The step's outputs.
        latest: The parameters of each shard after its push, by `snapshot_signature`.
        ended: Other operations that have to run.
    """

    times: Times
    told: list[tf.Tensor]
    outputs: list[tf.Tensor]
    latest: list[list[tf.Tensor]]
    ended: list[tf.Operation]


class Step:
    """Builds a step in a graph, shared by all workers with the same device and the same host for their arrays."""

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
            computation: The program's computation.
            shards: All of them, wherever they are.
            looked_at: The optimizer variables that a computation reads.
            devices: The worker's device, and the device of its arrays.
            semaphore: For the link of the shards' host.
            rounded: Whether parameters and gradients travel between hosts as 16-bit floats.
        """
        self.source, self.computation, self.shards, self.looked_at = source, computation, shards, looked_at
        (self.device, self.arrays_device), self.semaphore, self._rounded = devices, semaphore, rounded
        # The tensors of each snapshot that the worker gets whole.
        self._whole = [computation.pulled_whole(number) for number in range(len(shards))]
        snapshots = self._pulled_whole(self.snapshot_signatures())
        gradients = [spec for shard in shards for spec in shard.snapshot_signature()[: shard.num_vectors]]
        # Both directions. Rows of tables are counted at each step: only the batch's rows travel.
        self.num_bytes = sum(
            self._size(spec) * spec.shape.num_elements() for spec in tf.nest.flatten([snapshots, gradients])
        )

    def snapshot_signatures(self) -> list[list[tf.TensorSpec]]:
        """Returns the specs of the tensors of each shard's snapshot."""
        return [shard.snapshot_signature() for shard in self.shards]

    def optimizer_signature(self) -> list[tf.TensorSpec]:
        """Returns the specs of the optimizer variables that a computation reads."""
        return [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.looked_at]

    def arrays_signature(self) -> list[tf.TensorSpec]:
        """Returns the specs of the arrays that hold a batch."""
        return [array_spec(spec) for spec in self.source.batch]

    def pushes(self, told: np.ndarray) -> list[Pushed]:
        """Returns the results of a step's pushes.

        Args:
            told: float64 [shards * 4], the numbers in `InGraph.told` for all shards.
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
        """Builds the step.

        Args:
            rows: int64 [batch], on the arrays' device.
            arrays: In the order of the source's inputs.
            versions: Each snapshot's version, int64 scalar, on the shard's device.
            snapshots: Tensors of each shard's snapshot.
            pulled: The values of the optimizer variables that the step reads.
            begins: The pull begins when the worker has these.
        """
        with tf.device(cpu_beside(self.device)), tf.control_dependencies(begins):
            began_s = now_s()
        with tf.device(self.arrays_device):
            batch = batch_of(self.source, arrays, rows)
        crossing, fetched = self._fetched(batch, snapshots, began_s)
        received = self.received(snapshots, pulled)
        arrived = [*received, *crossing, *(each.rows for each in fetched)]
        with tf.device(cpu_beside(self.device)), tf.control_dependencies([began_s, *arrived]):
            arrived_s = now_s()
        with tf.device(self.device):
            with tf.control_dependencies([arrived_s]):
                given = [each.rows for each in fetched], [each.places for each in fetched]
                arguments = self.computation.in_order(received, batch, crossing, *given)
                flat = tf.nest.flatten(self.computation.traced(*arguments))
            computed = self.computation.computed(flat)
            # A control edge from an inlined call waits for its effects and not for its values.
            gradients = [each.mapped(tf.identity) for each in computed.gradients]
        with tf.device(cpu_beside(self.device)):
            # The next step may begin once the push is reported, so this step's variables have to be set before.
            with tf.control_dependencies([flat[0].op, *(tensor for each in gradients for tensor in each.tensors)]):
                computed_s = now_s()
            num_row_bytes = tf.add_n([self._num_row_bytes(gradients), *(each.num_bytes for each in fetched)])
            times = Times(began_s, arrived_s, computed_s, num_row_bytes)
        # Take the time before anything is pushed.
        with tf.control_dependencies([computed_s, *self.semaphore.push(self.device, computed_s)]):
            there = [self._carried(each, shard) for each, shard in zip(gradients, self.shards, strict=True)]
        told, latest = self._pushed(there, snapshots, versions)
        ended = self.semaphore.pushed(self.device, [tensor for each in there for tensor in each.tensors])
        ended += self.semaphore.pulled(self.device, [arrived_s])
        # A push's results exist only when its effects have ended, so `ended` need not contain these.
        return InGraph(times, told, computed.outputs, latest, ended)

    def parted(self, numbers: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns rows and versions, each on the device that uses it.

        Args:
            numbers: int64 [shards + batch]: the snapshots' versions, then rows. One tensor, since every tensor sent to another
                host is a separate request.
        """
        with tf.device(self.arrays_device):
            rows = numbers[len(self.shards) :]
        versions = []
        for number, shard in enumerate(self.shards):
            with tf.device(shard.device):
                versions.append(numbers[number])
        return rows, versions

    def told(self, made: InGraph, coordinator: str) -> list[tf.Tensor]:
        """Returns, in a graph, one step's numbers and tensors for `keep`.

        Args:
            made: The step.
            coordinator: The coordinator's CPU device.
        """
        times = made.times
        with tf.device(cpu_beside(self.device)):
            of_worker = tf.stack([times.began_s, times.arrived_s, times.computed_s, times.num_row_bytes])
        with tf.device(coordinator):
            latest = [_kept_there(tensor) for tensor in tf.nest.flatten(made.latest)]
            return [tf.concat([of_worker, *made.told], 0), *made.outputs, *latest]

    def keep(self, told: np.ndarray, tensors: Sequence[tf.Tensor]) -> tuple[list[float], np.ndarray, list[tf.Tensor]]:
        """Gives each shard its parameters after a step.

        Args:
            told: The first tensor that `told` returned.
            tensors: The other tensors that `told` returned.

        Returns:
            The fields of `Times`; float64 [shards, 4], the numbers in `InGraph.told`; the outputs.
        """
        of_worker, of_shards = np.split(told, [_OF_WORKER])
        by_shard, rest = of_shards.reshape(len(self.shards), -1), list(tensors)
        outputs = [rest.pop(0) for _ in self.source.step.outputs]
        for shard, of_shard in zip(self.shards, by_shard, strict=True):
            shard.keep(of_shard, [rest.pop(0) for _ in shard.snapshot_signature()])
        return of_worker.tolist(), by_shard, outputs

    def received(self, snapshots: Sequence[Sequence[tf.Tensor]], optimizer: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns, in a graph, the tensors that a worker gets whole and computes with, on its device.

        Args:
            snapshots: Tensors of each shard's snapshot, on the shard's device.
            optimizer: The values of the optimizer variables that the step reads, on their shards' devices.
        """
        received = []
        for shard, snapshot in zip(self.shards, self._pulled_whole(snapshots), strict=True):
            received += carried(snapshot, shard.device, self.device, self._rounded)
        for variable, value in zip(self.looked_at, optimizer, strict=True):
            received += carried([value], variable.device, self.device, self._rounded)
        return received

    def _pulled_whole(self, snapshots: Sequence[Sequence[T]]) -> list[list[T]]:
        return [[snapshot[i] for i in whole] for snapshot, whole in zip(snapshots, self._whole, strict=True)]

    def _fetched(
        self, batch: Sequence[tf.Tensor], snapshots: Sequence[Sequence[tf.Tensor]], began_s: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[Fetched]]:
        """Returns the tensors that both stages of the computation use, and the rows of each table that is pulled by rows."""
        computation = self.computation
        if computation.row_numbers is None:
            return [], []
        # Computed from the batch alone, row numbers reach the servers while the worker's step before is under way.
        with tf.device(self.device):
            with tf.control_dependencies([began_s] if computation.needs_turn else []):
                flat = tf.nest.flatten(computation.row_numbers(*batch))
            # As for gradients, what follows has to wait for the effects too.
            with tf.control_dependencies([flat[0].op]):
                crossing, numbers = computation.by_table([tf.identity(tensor) for tensor in flat])
        fetched = []
        for table, asked in zip(computation.tables, numbers, strict=True):
            parts = [
                Part(self.shards[number].table(place), snapshots[number][place], self.shards[number].device)
                for number, place in computation.places_of(table.variable)
            ]
            fetched.append(fetch(parts, asked, self.device, self._rounded))
        return crossing, fetched

    def _carried(self, gradients: Gradients, shard: Shard) -> Gradients:
        """Returns gradients on the shard's device."""
        if shard.device == self.device:
            # TensorFlow places a tensor without a device on the coordinator.
            with tf.device(self.device):
                return gradients.mapped(tf.identity)
        # Join vectors: every tensor sent to another device is a separate request.
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
        """Returns the numbers of each shard's push, and its parameters after the push."""
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


def _kept_there(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that a function may return without moving it to another device.

    TensorFlow leaves what a function returns where it was made, but of variants only those that are colocated.
    """
    if tensor.dtype != tf.variant:
        return tensor
    with tensor.graph.colocate_with(tensor.op):
        return tf.identity(tensor)


def batch_of(source: program_pb2.StepProgram, arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> list[tf.Tensor]:
    """Takes a batch of a program from arrays, in a graph; int64 [batch] row numbers."""
    batch = take(arrays, rows)
    for taken, spec in zip(batch, source.batch, strict=True):
        taken.set_shape(shape_of(spec))
    return batch


def array_spec(spec: program_pb2.Tensor) -> tf.TensorSpec:
    """Returns the spec of an array that holds the batches of an input."""
    shape = shape_of(spec)
    return tf.TensorSpec(shape if shape.rank is None else [None, *shape[1:]], spec.dtype)
