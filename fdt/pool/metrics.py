"""Serves a pool's metrics through Prometheus's client library: `fdt serve --metrics 127.0.0.1:9090`."""

import collections
import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fdt.base.limits import DEFAULT, Limits
from fdt.errors import UsageError
from fdt.pool.snapshot import JobSnapshot, Snapshot, WorkerSnapshot


class _Until(io.RawIOBase):
    """Reads from a socket until a deadline, which arriving bytes do not extend."""

    def __init__(self, connection: socket.socket, end_s: float) -> None:
        self._connection, self._end_s = connection, end_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(0.001, self._end_s - time.monotonic()))
        return self._connection.recv_into(buffer)


class _Handler(WSGIRequestHandler):
    """Answers one request; closes the connection if the request does not arrive in time."""

    server: "_Server"

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Until(self.connection, time.monotonic() + self.server.limits.silent_http_s))

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """Answers `limits.metrics_connections` connections at a time, and closes further ones."""

    daemon_threads = True

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        self.limits = limits
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.Semaphore(limits.metrics_connections)
        super().__init__((host, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class MetricsServer:
    """Serves metrics over HTTP until it is closed.

    Attributes:
        address: "host:port".
    """

    def __init__(self, address: str, collector: Collector, limits: Limits) -> None:
        """Opens the port and starts to answer.

        Raises:
            UsageError: The port cannot be opened.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server(host.strip("[]"), int(port), limits)
        except OSError as error:
            raise UsageError(f"cannot show metrics at {address}: {error.strerror or error}") from error
        self._server.set_app(make_wsgi_app(registry))
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="fdt-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(address: str, snapshot: Callable[[], Snapshot], limits: Limits = DEFAULT) -> MetricsServer:
    """Starts a server of metrics.

    Args:
        address: "host:port" on loopback.
        snapshot: Returns a snapshot of the pool.
        limits: Bounds of connections.
    """
    return MetricsServer(address, PoolCollector(snapshot), limits)


class PoolCollector(Collector):
    """Makes metrics from a snapshot at each scrape; keeps nothing between scrapes."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """
        Args:
            snapshot: Returns a snapshot of the pool.
        """
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics."""
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
    age = GaugeMetricFamily("fdt_worker_heartbeat_age_seconds", "Time since a worker's last message.", labels=labels)
    cores = GaugeMetricFamily("fdt_worker_busy_cores", "Cores that a worker process keeps busy.", labels=labels)
    memory = GaugeMetricFamily("fdt_worker_memory_bytes", "Resident memory of a worker process.", labels=labels)
    sent = CounterMetricFamily("fdt_host_sent_bytes", "Sent by a worker's host, all interfaces.", labels=labels)
    received = CounterMetricFamily("fdt_host_received_bytes", "Received by a worker's host.", labels=labels)
    gpu = GaugeMetricFamily("fdt_gpu_utilization", "Load of a GPU of a worker's host, 0 to 1.", labels=[*labels, "gpu"])
    gpu_memory = GaugeMetricFamily("fdt_gpu_memory_bytes", "Memory in use on that GPU.", labels=[*labels, "gpu"])
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
