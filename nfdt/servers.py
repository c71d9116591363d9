"""Builds a program's parameter servers and the workers' replicas, and runs its steps on them."""

import itertools
import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from fdt.base.native import optional
from fdt.program.packing import Pieces
from fdt.program.step_program import dtype_of
from fdt.program.update.cut import cut
from fdt.program.update.parameter_groups import find_units
from fdt.v1 import program_pb2
from nfdt import host_memory
from nfdt.chained import Chained
from nfdt.components import Components
from nfdt.devices import cpu_beside, driver_cpu, host_of
from nfdt.feed import Arrays
from nfdt.layout import lay_out
from nfdt.link_semaphore import LinkSemaphore, who_takes_turns
from nfdt.loop import MOST_AT_ONCE, Loop
from nfdt.next_parameters import NextParameters
from nfdt.replica import Computation
from nfdt.rules import Rule
from nfdt.shard import Shard
from nfdt.single import Single
from nfdt.stages import divide
from nfdt.staleness_bound import StalenessBound
from nfdt.step import Pulled, Step, Stepped

_ON_SERVERS = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)


class ParameterServers:
    """A program's shards, which keep its parameters, and replicas, which compute gradients."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        rule: Rule,
        shard_devices: Sequence[str],
        worker_devices: Sequence[str],
        num_workers: int | None = None,
        rounded: bool = False,
        gate: StalenessBound | None = None,
        memory_bytes: int | None = None,
    ):
        """Builds both; variables are zero until assigned. Call it only while no step of any program runs.

        Args:
            source: The program.
            rule: What a shard does with a gradient.
            shard_devices: One for each shard.
            worker_devices: One for each replica.
            num_workers: How many workers push; None for the number of replicas.
            rounded: Whether parameters and gradients travel between hosts as 16-bit floats.
            gate: The workers' staleness bound; None for no limit.
            memory_bytes: What the process of each host may use; None if that is not known.

        Raises:
            UnsupportedError: It does not fit into memory.
        """
        num_workers = len(worker_devices) if num_workers is None else num_workers
        self.source, self._rounded = source, rounded
        parts = cut(source)
        # A single worker's result is plain Keras's bit for bit, so its operations are not changed.
        fuse = num_workers > 1
        stages = divide(source, parts)
        by_rows = {table.variable for table in stages.tables}
        self.layout = lay_out(source, parts, find_units(source, parts), len(shard_devices), fuse, by_rows)
        if memory_bytes is not None:
            kept_by_rule = None if rule.is_plain or num_workers == 1 else rule
            host_memory.check(source, self.layout, kept_by_rule, shard_devices, worker_devices, by_rows, memory_bytes)
        self._computation = Computation(source, parts, stages, self.layout, worker_devices[0], as_traced=not fuse)
        self.shards = [
            Shard(source, parts, self.layout, number, rule, num_workers, device, by_rows)
            for number, (device, _) in enumerate(zip(shard_devices, self.layout.shards, strict=False))
        ]
        self.replicas = [self._computation.replica(device, i == 0) for i, device in enumerate(worker_devices)]
        self._looked_at = [self._keeper(i).variable(i) for i in parts.optimizer_reads]
        self._semaphore = LinkSemaphore(shard_devices, worker_devices)
        # Three functions: a worker's step, with arrays on its own host or on the coordinator's; and the function that
        # TensorFlow makes of an operation with inputs on another host.
        Components.of_process().expect(worker_devices, shard_devices, functions=3)
        self._lock = threading.Lock()
        self._gate = StalenessBound(num_workers, None) if gate is None else gate
        # No loop for a single worker, whose results are plain Keras's bit for bit: TensorFlow may choose other kernels in a
        # loop. Nor on other hosts, where a worker would not see other workers' pushes before its call ends. Nor without the
        # compiled operations, by which a worker waits in a graph.
        self._loops = num_workers > 1 and _are_here(shard_devices, worker_devices) and optional("nfdt") is not None
        chains = may_chain(shard_devices, worker_devices, num_workers, self._gate) and not self._looked_at
        self._next_parameters = [NextParameters(self.shards) for _ in worker_devices] if chains else None
        # Steps that are not chained: one at a time per worker.
        self._alone = [threading.Lock() for _ in worker_devices]
        # By the devices of a worker and of its arrays.
        self._steps: dict[tuple[str, str], Loop | Single | Chained] = {}

    def pull(self) -> Pulled:
        """Returns the parameters of all shards."""
        return Pulled([shard.pull() for shard in self.shards], [v.read_value() for v in self._looked_at])

    @property
    def most_at_once(self) -> int:
        """How many steps a worker may make in one call."""
        return MOST_AT_ONCE if self._loops else 1

    def step(self, worker: int, arrays: Arrays, rows: np.ndarray, pulled: Pulled | None = None) -> Stepped:
        """Pulls, computes and pushes.

        Args:
            worker: The worker's index.
            arrays: The arrays that hold its batch.
            rows: int64 [batch].
            pulled: The parameters to compute with; None for the shards' current ones.
        """
        return self.steps(worker, arrays, [rows], pulled)

    def steps(self, worker: int, arrays: Arrays, rows: Sequence[np.ndarray], pulled: Pulled | None = None) -> Stepped:
        """Makes steps one after the other.

        Args:
            worker: The worker's index.
            arrays: The arrays that hold the batches.
            rows: int64 [batch] for each step, of equal lengths; at most `most_at_once` of them.
            pulled: As for `step`, for the first step.
        """
        replica = self.replicas[worker]
        step = self._step((replica.device, arrays.device))
        if isinstance(step, Loop):
            return step(worker, replica, pulled, self.pull, arrays, rows)
        (only,) = rows
        if isinstance(step, Chained):
            assert self._next_parameters is not None
            return step(worker, replica, self._next_parameters[worker], pulled, self.pull, arrays, only)
        with self._alone[worker]:
            return step(worker, replica, self.pull if pulled is None else lambda: pulled, arrays, only)

    def read(self, indices: Sequence[int]) -> dict[int, np.ndarray | Pieces]:
        """Returns values of parameters and optimizer variables; in pieces of those of which several shards have some rows."""
        values: dict[int, np.ndarray] = {}
        # For variables that all shards keep, the first shard's values count.
        for shard in reversed(self.shards):
            shard.read(indices, values)
        return values | {i: self._in_pieces(i) for i in set(indices) & set(self.layout.shards[0].spans)}

    def _in_pieces(self, index: int) -> Pieces:
        spec = self.source.variables[index].tensor
        num_bytes = math.prod(spec.shape) * dtype_of(spec).itemsize
        # All shards have some rows, in their own order.
        return Pieces(num_bytes, itertools.chain.from_iterable(shard.rows_of(index) for shard in self.shards))

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables: parameters and optimizer state on the shards, others on every replica."""
        kept = {i: v for i, v in values.items() if self.source.variables[i].role in _ON_SERVERS}
        for shard in self.shards:
            shard.assign(kept)
        # Workers do not pull the variables that no step changes.
        still = set(self.layout.still)
        local = {i: v for i, v in values.items() if i not in kept or i in still}
        for replica in self.replicas:
            replica.assign(local)
        for parameters in self._next_parameters or ():
            parameters.forget()

    def _step(self, devices: tuple[str, str]) -> Loop | Single | Chained:
        with self._lock:
            if devices not in self._steps:
                step = Step(
                    self.source,
                    self._computation,
                    self.shards,
                    self._looked_at,
                    devices,
                    self._semaphore,
                    self._rounded,
                )
                loops = self._loops and host_of(devices[1]) == host_of(devices[0])
                kind = Loop if loops else Single if self._next_parameters is None else Chained
                self._steps[devices] = kind(step, self._gate)
            return self._steps[devices]

    def _keeper(self, index: int) -> Shard:
        return next(shard for shard in self.shards if shard.keeps(index))


def may_chain(
    shard_devices: Sequence[str], worker_devices: Sequence[str], num_workers: int, gate: StalenessBound
) -> bool:
    """Whether a worker's step may be called while the one before is under way.

    Args:
        shard_devices: As for `ParameterServers`.
        worker_devices: As for `ParameterServers`.
        num_workers: As for `ParameterServers`.
        gate: As for `ParameterServers`.
    """
    # A worker that the bound or the semaphore holds should compute with the parameters current at its release. GPU queues copy.
    return (
        num_workers > 1
        and gate.max_delay is None
        and not _are_here(shard_devices, worker_devices)
        and not who_takes_turns(shard_devices, worker_devices)
        and all(device == cpu_beside(device) for device in shard_devices)
    )


def _are_here(shard_devices: Sequence[str], worker_devices: Sequence[str]) -> bool:
    """Whether all devices are on the coordinator's host."""
    here = {host_of(driver_cpu(device)) for device in worker_devices}
    return here == set(map(host_of, [*shard_devices, *worker_devices]))
