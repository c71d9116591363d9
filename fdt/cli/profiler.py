"""Measures a training step on separate workers, in short jobs that do not change the script's state."""

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fdt.base.config import Credentials, RunConfig
from fdt.base.gpus import num_gpus
from fdt.base.versions import versions
from fdt.client.data import full_spec, raw
from fdt.client.embedded_pool import EmbeddedPool
from fdt.client.job import Job
from fdt.client.state import SharedState
from fdt.errors import CapacityError
from fdt.forecast.links import Hosts, Machine
from fdt.forecast.samples import Found, Sample
from fdt.forecast.step_time import RENDEZVOUS_S, Timed, Workload, compute_seconds
from fdt.transport import rpc, statuses
from fdt.transport.blob_client import BlobClient, SharedStore
from fdt.v1 import job_pb2, pool_pb2, pool_pb2_grpc

_ALL = job_pb2.Drain.WHAT_ALL
# Each batch size is measured for this many seconds, in this many parts, after this many steps that do not count.
_MEASURE_S = 0.6
_PARTS = 6
_WARM_STEPS = 3
_MAX_STEPS_A_PART = 200


@dataclasses.dataclass(frozen=True)
class Measured:
    """The workers' times for a step, in seconds; means over workers.

    Attributes:
        compute: A worker's computation, without the exchange.
        exchange: A worker's exchange.
        push: Asynchronous: the part of the exchange in which a gradient is applied.
        exchanged_bytes: Bytes that a step moved.
    """

    compute: Timed
    exchange: float
    push: float
    exchanged_bytes: float


class Bench:
    """A connection to a pool, whose workers run the measured steps."""

    def __init__(self, config: RunConfig, address: str, credentials: Credentials, store: Path | None) -> None:
        """Connects to the pool.

        Args:
            config: The jobs' configuration, except mode and workers.
            address: The pool's address.
            credentials: The credentials for the pool.
            store: The folder of its store, if this process may use its files; else None.
        """
        self._config, self._address, self._store = config, address, store
        self._channel = rpc.connect(address, credentials, config.timing)

    def check(self) -> None:
        """Raises CapacityError unless the pool has two workers and both modes."""
        with statuses.translated(self._address):
            stub = pool_pb2_grpc.PoolStub(self._channel)
            request = pool_pb2.DescribeRequest(versions=versions())
            described = stub.Describe(request, timeout=self._config.timing.connect_s, wait_for_ready=True)
        if described.num_workers < 2 or set(described.modes) < {"sync", "async"}:
            raise CapacityError(
                f"The pool at {self._address} has {described.num_workers} workers and offers {', '.join(described.modes)}; to "
                "measure it needs two workers and both modes (`fdt serve --mode both --workers N`)."
            )

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def measure(self, sample: Sample, mode: str, workers: int, sizes: Sequence[int]) -> list[Measured]:
        """Runs steps on batches of each size.

        Args:
            sample: The step.
            mode: "sync" or "async".
            workers: The job's number of workers.
            sizes: The batches' numbers of rows.

        Raises:
            FdtError: The job failed.
        """
        with self._job(mode, workers) as job:
            program = job.load(sample.program, sample)
            return [self._measure(job, sample, program, size) for size in sizes]

    @contextlib.contextmanager
    def _job(self, mode: str, workers: int) -> Iterator[Job]:
        config = dataclasses.replace(self._config, mode=mode, num_workers=workers, options={})
        blobs = BlobClient(self._channel, config.timing) if self._store is None else SharedStore(self._store)
        job = Job(self._channel, self._address, config, blobs)
        try:
            yield job
        finally:
            job.close()

    def _measure(self, job: Job, sample: Sample, program: int, size: int) -> Measured:
        arrays = sample.first(size)
        data = job.bind([raw(a) for a in arrays], [full_spec(a) for a in arrays])
        # Every size begins with the script's own values, since a step repeated on one batch changes them.
        job.assign(program, *SharedState(sample.program, sample.variables).changes())
        indices = np.arange(len(arrays[0]), dtype="<i8").tobytes()

        def run(steps: int) -> _Account:
            before = _Account.of(job.usage)
            for _ in range(steps):
                job.run(program, data, indices)
            job.drain(program, _ALL)
            return _Account.of(job.usage).less(before)

        run(_WARM_STEPS)
        trial = run(_WARM_STEPS)
        steps = max(1, min(_MAX_STEPS_A_PART, round(_MEASURE_S / _PARTS / max(1e-6, trial.busy_s / _WARM_STEPS))))
        parts = [run(steps) for _ in range(_PARTS)]
        times = [part.compute_s / part.steps for part in parts]
        compute = Timed(size, statistics.median(times), statistics.stdev(times))
        total = sum(part.steps for part in parts)
        return Measured(
            compute,
            statistics.median(part.exchange_s / part.steps for part in parts),
            statistics.median(part.push_s / part.steps for part in parts),
            sum(part.exchanged_bytes for part in parts) / total,
        )


@dataclasses.dataclass(frozen=True)
class _Account:
    """The totals of all workers."""

    steps: float
    compute_s: float
    exchange_s: float
    push_s: float
    exchanged_bytes: float

    @classmethod
    def of(cls, usage: Sequence[job_pb2.WorkerUsage]) -> "_Account":
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(sum(getattr(worker, name) for worker in usage) for name in names))

    def less(self, other: "_Account") -> "_Account":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return _Account(*(mine - theirs for mine, theirs in pairs))

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.exchange_s


@contextlib.contextmanager
def own_bench(config: RunConfig, num_workers: int, num_threads: int | None = None) -> Iterator[Bench]:
    """Starts a pool on this machine; yields a bench on it, and ends the pool with the context.

    Args:
        config: The jobs' configuration.
        num_workers: The pool's number of workers.
        num_threads: Threads of each worker; None for its share of the machine's.
    """
    pool = EmbeddedPool(("sync", "async"), num_workers, config.timing, num_threads)
    try:
        pool.wait()
        bench = Bench(config, pool.address, pool.credentials, pool.store)
        try:
            yield bench
        finally:
            bench.close()
    finally:
        pool.close()


def num_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def on_hosts(config: RunConfig, found: Sequence[Found]) -> list[Workload]:
    """Measures steps on one worker that has all cores of this machine, as on a host of its own."""
    with own_bench(config, 2, num_cores()) as bench:
        return [_alone(bench, config, each, num_cores()) for each in found]


def on_server(config: RunConfig, found: Sequence[Found]) -> list[tuple[Workload, Hosts]]:
    """Measures steps, and the network between workers, on the pool that the configuration names.

    Raises:
        PoolError: The pool cannot be reached, or has fewer than two workers or one mode only.
    """
    assert config.server is not None
    bench = Bench(config, config.server, config.credentials, None)
    try:
        bench.check()
        measured = []
        for each in found:
            workload = _alone(bench, config, each, None)
            (two,) = bench.measure(each.sample, "sync", 2, each.sample.sizes()[:1])
            rate = _bandwidth(workload, two.exchange)
            # A push's time consists of the transfer and the update.
            update = max(0.0, workload.update - workload.pushed_bytes / rate)
            measured.append((dataclasses.replace(workload, update=update), Hosts(rate)))
        return measured
    finally:
        bench.close()


def on_machine(config: RunConfig, found: Sequence[Found]) -> list[tuple[Workload, Machine]]:
    """Measures steps on workers that share this machine."""
    with own_bench(config, 1) as bench:
        whole = [bench.measure(e.sample, "sync", 1, e.sample.sizes()[:1])[0].compute.seconds for e in found]
    with own_bench(config, 2) as bench:
        return [_shared(bench, config, each, local) for each, local in zip(found, whole, strict=True)]


def _alone(bench: Bench, config: RunConfig, found: Found, threads: int | None) -> Workload:
    step = bench.measure(found.sample, "sync", 1, found.sample.sizes())
    servers = _servers(bench, found.sample, beside=False)
    return _workload(config, found, threads, step, servers, step[0].compute.seconds)


def _shared(bench: Bench, config: RunConfig, found: Found, local: float) -> tuple[Workload, Machine]:
    sample = found.sample
    step = bench.measure(sample, "sync", 1, sample.sizes())
    servers = _servers(bench, sample, beside=True)
    workload = _workload(config, found, max(1, num_cores() // 2), step, servers, local)
    (two,) = bench.measure(sample, "sync", 2, sample.sizes()[:1])
    half = compute_seconds(workload.step, sample.sizes()[0] / 2)
    contention = {
        "sync": (local / workload.step[0].seconds, two.compute.seconds / half),
        "async": (servers.alone / (servers.gradient + servers.update), 1.0),
    }
    gradients = max(0.0, two.exchange - workload.exchanges * RENDEZVOUS_S)
    return workload, Machine(_bandwidth(workload, gradients), contention, num_gpus() < 2)


@dataclasses.dataclass(frozen=True)
class _Servers:
    """A step's times with parameter servers.

    Attributes:
        gradient: Seconds of the gradient's computation.
        update: Seconds of a push.
        alone: Seconds of the whole step if there is one worker.
        row_bytes: Bytes of gradients sent as rows, for one row of the batch.
    """

    gradient: float
    update: float
    alone: float
    row_bytes: float


def _servers(bench: Bench, sample: Sample, beside: bool) -> _Servers:
    """Measures a step with parameter servers.

    Args:
        bench: A pool with two workers.
        sample: The step.
        beside: Whether the gradient is timed while a second worker computes, too.
    """
    sizes = sample.sizes()
    one = bench.measure(sample, "async", 1, sizes[:2])
    # A push is timed with two workers: one worker's gradients are never late, so they are not compensated.
    (two,) = bench.measure(sample, "async", 2, sizes[:1])
    alone = one[0].compute.seconds
    gradient = two.compute.seconds if beside else alone
    return _Servers(gradient, two.push, alone + one[0].exchange, _row_bytes(sample, one))


def _row_bytes(sample: Sample, measured: Sequence[Measured]) -> float:
    tables, dense = sum(sample.tensor_bytes(sparse=True)), sum(sample.tensor_bytes(sparse=False))
    if not tables:
        return 0.0
    by_rows = sum(sample.bytes_by_rows())
    # Rows are pushed; of tables that go by rows, about as many are pulled.
    directions = 2 if by_rows else 1
    if len(measured) > 1:
        more, fewer = measured[:2]
        return (more.exchanged_bytes - fewer.exchanged_bytes) / (more.compute.rows - fewer.compute.rows) / directions
    # Pulled: all other parameters; pushed: dense gradients.
    rest = measured[0].exchanged_bytes - (tables - by_rows) - 2 * dense
    return max(0.0, rest) / measured[0].compute.rows / directions


def _workload(
    config: RunConfig, found: Found, threads: int | None, step: Sequence[Measured], servers: _Servers, local: float
) -> Workload:
    sample = found.sample
    return Workload(
        script=config.script,
        batch=sample.rows,
        steps=found.steps,
        threads=threads,
        step=tuple(measured.compute for measured in step),
        gradient=servers.gradient,
        update=servers.update,
        dense=tuple(sample.tensor_bytes(sparse=False)),
        tables=tuple(sample.tensor_bytes(sparse=True)),
        row_bytes=servers.row_bytes,
        local=local,
        exchanges=sample.exchanges,
        exchanged_bytes=sample.exchanged_bytes,
        by_rows=tuple(sample.bytes_by_rows()),
        cut=tuple(sample.cut_tables()),
        memory=sample.memory,
    )


def _bandwidth(workload: Workload, exchange: float) -> float:
    """Returns the rate of an all-reduce between two workers, each of which sends all gradients' bytes once."""
    return (sum(workload.dense) + workload.row_bytes * workload.batch / 2) / max(exchange, 1e-9)
