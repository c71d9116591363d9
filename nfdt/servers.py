"""The parameter servers of one program, and the workers' copies of it."""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from fdt.v1 import program_pb2
from nfdt.cut import cut
from nfdt.devices import host_of
from nfdt.feed import Feed, OwnFeed
from nfdt.layout import lay_out
from nfdt.replica import Computation, Computed
from nfdt.rules import Rule
from nfdt.shard import Gradients, Pushed, Shard
from nfdt.step import LocalStep, Pulled, Stepped
from nfdt.transfer import travelling_dtype
from nfdt.turns import Turns
from nfdt.units import find_units

_ON_SERVERS = (program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER)


class ParameterServers:
    """A program, divided into shards that keep its parameters and replicas that compute with them."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        rule: Rule,
        shard_devices: Sequence[str],
        worker_devices: Sequence[str],
        num_workers: int | None = None,
        rounded: bool = False,
    ):
        """Builds both; everything is zero until it is assigned.

        Args:
            source: The program.
            rule: What a shard does with a gradient.
            shard_devices: One for each shard.
            worker_devices: One for each replica.
            num_workers: How many push; None for as many as there are replicas.
            rounded: Whether parameters and gradients travel between hosts as 16-bit floats.
        """
        num_workers = len(worker_devices) if num_workers is None else num_workers
        self._workers, self._turns = worker_devices, Turns(shard_devices)
        self.source, self._rounded = source, rounded
        parts = cut(source)
        # One worker's result is plain Keras's bit for bit, so its updates are left as they are.
        fuse = num_workers > 1
        self.layout = lay_out(source, parts, find_units(source, parts), len(shard_devices), fuse)
        self.shards = [
            Shard(source, parts, self.layout, number, rule, num_workers, device, rounded)
            for number, (device, _) in enumerate(zip(shard_devices, self.layout.shards, strict=False))
        ]
        computation = Computation(source, parts, self.layout, worker_devices[0])
        self.replicas = [computation.replica(device, i == 0, rounded) for i, device in enumerate(worker_devices)]
        self._looked_at = [self._keeper(i).variable(i) for i in parts.optimizer_reads]
        self._local: LocalStep | None = None
        if not any(map(host_of, (*shard_devices, *worker_devices))):
            self._local = LocalStep(source, computation, self.shards, self._looked_at)

    def pull(self) -> Pulled:
        """Returns the parameters of all shards."""
        return Pulled([shard.pull() for shard in self.shards], [v.read_value() for v in self._looked_at])

    def push(self, gradients: Sequence[Gradients], pulled: Pulled, worker: int = 0) -> list[Pushed]:
        """Hands every shard the gradients that a worker computed."""
        shares = zip(self.shards, gradients, pulled.snapshots, strict=True)
        turn = self._turns.into(self._workers[worker])
        return [shard.push(mine, snapshot, turn) for shard, mine, snapshot in shares]

    def step(self, worker: int, feed: Feed, rows: np.ndarray) -> Stepped:
        """Pulls, computes and pushes.

        Args:
            worker: Whose step it is.
            feed: Where its batch comes from.
            rows: int64 [batch].
        """
        replica = self.replicas[worker]
        if self._local is not None and isinstance(feed, OwnFeed):
            return self._local(replica, self.pull(), feed.arrays, rows)
        batch = feed.batch(worker, rows)
        times = [time.perf_counter()]
        with self._turns.out(self._workers[worker]):
            pulled = self.pull()
            received = replica.receive(pulled.snapshots, pulled.optimizer)
        times.append(time.perf_counter())
        computed = replica.compute(received, batch)
        times.append(time.perf_counter())
        pushed = self.push(computed.gradients, pulled, worker)
        times.append(time.perf_counter())
        pull_s, compute_s, push_s = np.diff(times).tolist()
        return Stepped(computed.outputs, pushed, pull_s, compute_s, push_s, self._num_bytes(pulled, computed))

    def read(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns values of parameters and optimizer variables."""
        values: dict[int, np.ndarray] = {}
        # The first shard's word counts for what all keep.
        for shard in reversed(self.shards):
            values.update(shard.read(indices))
        return values

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables: parameters and optimizer state on the shards, others on every replica."""
        kept = {i: v for i, v in values.items() if self.source.variables[i].role in _ON_SERVERS}
        for shard in self.shards:
            shard.assign(kept)
        # What no step changes is not pulled either.
        still = set(self.layout.still)
        local = {i: v for i, v in values.items() if i not in kept or i in still}
        for replica in self.replicas:
            replica.assign(local)

    def _num_bytes(self, pulled: Pulled, computed: Computed) -> int:
        """Returns what went one way and the other."""
        tensors = [t for s in pulled.snapshots for t in (*s.vectors, *s.tables)]
        for gradients in computed.gradients:
            tensors += [*gradients.vectors, *(t for pair in gradients.rows for t in pair)]
        return sum(t.shape.num_elements() * travelling_dtype(t, self._rounded).size for t in tensors)

    def _keeper(self, index: int) -> Shard:
        return next(shard for shard in self.shards if shard.keeps(index))
