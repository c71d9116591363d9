"""A pool's figures in the format of Prometheus, by its own client library: `fdt serve --metrics 127.0.0.1:9090`."""

import collections
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fdt.errors import UsageError
from fdt.pool.snapshot import JobSnapshot, Snapshot, WorkerSnapshot


class MetricsServer:
    """Answers over HTTP until it is closed.

    Attributes:
        address: "host:port".
    """

    def __init__(self, address: str, collector: Collector) -> None:
        """Opens a port.

        Raises:
            UsageError: It cannot be opened.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise UsageError(f"cannot show metrics at {address}: {error.strerror or error}") from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(address: str, snapshot: Callable[[], Snapshot]) -> MetricsServer:
    """Begins to answer.

    Args:
        address: "host:port" on loopback.
        snapshot: Returns what the pool knows.
    """
    return MetricsServer(address, PoolCollector(snapshot))


class PoolCollector(Collector):
    """What a pool knows, as metrics; nothing is counted between two visits."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """
        Args:
            snapshot: Returns what the pool knows.
        """
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yields everything there is."""
        found = self._snapshot()
        yield from _of_jobs(found.jobs)
        yield from _of_workers(found.workers)


def _of_jobs(jobs: Sequence[JobSnapshot]) -> Iterator[Metric]:
    states = GaugeMetricFamily("fdt_jobs", "Jobs that the pool remembers, by state.", labels=["state"])
    for state, count in collections.Counter(job.state for job in jobs).items():
        states.add_metric([state], count)
    yield states
    yield GaugeMetricFamily("fdt_queue_length", "Jobs that wait.", sum(job.state == "queued" for job in jobs))
    steps = CounterMetricFamily("fdt_job_steps", "Steps done.", labels=["job", "mode"])
    sums = {
        name: CounterMetricFamily(
            f"fdt_job_{name}", f"{text}, as of the last full synchronisation.", labels=["job", "mode"]
        )
        for name, text in (
            ("samples", "Rows computed on, all workers"),
            ("compute_seconds", "Computation, all workers"),
            ("exchange_seconds", "Exchange of gradients, all workers"),
            ("exchanged_bytes", "Bytes handed to the exchange, all workers"),
        )
    }
    delay = GaugeMetricFamily(
        "fdt_job_delay_mean", "Mean delay of asynchronous gradients, in versions.", labels=["job", "mode"]
    )
    for job in jobs:
        labels = [job.name, job.mode]
        steps.add_metric(labels, job.steps)
        if not job.workers:
            continue
        sums["samples"].add_metric(labels, sum(w.samples for w in job.workers))
        sums["compute_seconds"].add_metric(labels, sum(w.compute_s for w in job.workers))
        sums["exchange_seconds"].add_metric(labels, sum(w.exchange_s for w in job.workers))
        sums["exchanged_bytes"].add_metric(labels, sum(w.exchanged_bytes for w in job.workers))
        met = [(d, count) for w in job.workers for d, count in w.delays.items()]
        if met:
            delay.add_metric(labels, sum(d * count for d, count in met) / sum(count for _, count in met))
    yield from (steps, *sums.values(), delay)


def _of_workers(workers: Sequence[WorkerSnapshot]) -> Iterator[Metric]:
    labels = ["worker", "host", "state", "job"]
    age = GaugeMetricFamily("fdt_worker_heartbeat_age_seconds", "Since a worker was last heard of.", labels=labels)
    cores = GaugeMetricFamily("fdt_worker_busy_cores", "Cores that a worker process keeps busy.", labels=labels)
    memory = GaugeMetricFamily("fdt_worker_memory_bytes", "Resident memory of a worker process.", labels=labels)
    sent = CounterMetricFamily("fdt_host_sent_bytes", "Sent by a worker's host, all interfaces.", labels=labels)
    received = CounterMetricFamily("fdt_host_received_bytes", "Received by it.", labels=labels)
    gpu = GaugeMetricFamily("fdt_gpu_utilization", "Of a GPU of a worker's host, 0 to 1.", labels=[*labels, "gpu"])
    gpu_memory = GaugeMetricFamily("fdt_gpu_memory_bytes", "Used, of such a GPU.", labels=[*labels, "gpu"])
    for worker in workers:
        of = [worker.name, worker.host, worker.state, worker.job]
        age.add_metric(of, worker.silent_s)
        if worker.sample is None:
            continue
        cores.add_metric(of, worker.sample.cores)
        memory.add_metric(of, worker.sample.memory_bytes)
        sent.add_metric(of, worker.sample.sent_bytes)
        received.add_metric(of, worker.sample.received_bytes)
        for one in worker.sample.gpus:
            gpu.add_metric([*of, str(one.index)], one.utilization)
            gpu_memory.add_metric([*of, str(one.index)], one.memory_bytes)
    yield from (age, cores, memory, sent, received, gpu, gpu_memory)
