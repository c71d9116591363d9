"""What Prometheus is shown of a pool, and samples of processes."""

import itertools
import urllib.request

from fdt.base.sampler import Sampler, Series
from fdt.pool.metrics import serve
from fdt.pool.snapshot import JobSnapshot, Snapshot, WorkerSnapshot
from fdt.v1 import job_pb2

USAGE = [
    job_pb2.WorkerUsage(rank=0, samples=30, exchange_s=1.5, exchanged_bytes=1000, delays={0: 3, 2: 1}),
    job_pb2.WorkerUsage(rank=1, samples=34, exchange_s=0.5, exchanged_bytes=500, delays={1: 2}),
]
GPU = job_pb2.Gpu(index=1, utilization=0.5, memory_bytes=77)
SNAPSHOT = Snapshot(
    [
        JobSnapshot("job-1", "async", "finished", 12, USAGE),
        JobSnapshot("job-2", "sync", "running", 3, []),
        JobSnapshot("job-3", "sync", "queued", 0, []),
    ],
    [
        WorkerSnapshot("w-1", "", "serving", "job-2", 0.25, job_pb2.Sample(cores=1.5, memory_bytes=42, gpus=[GPU])),
        WorkerSnapshot("w-2", "node (10.0.0.2)", "warm", "", 3.0, None),
    ],
)


def test_metrics_are_what_the_pool_knows() -> None:
    server = serve("127.0.0.1:0", lambda: SNAPSHOT)
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
    finally:
        server.close()
    # Prometheus sorts labels by name.
    first = 'host="",job="job-2",state="serving",worker="w-1"'
    for expected in (
        'fdt_jobs{state="running"} 1.0',
        "fdt_queue_length 1.0",
        'fdt_job_steps_total{job="job-1",mode="async"} 12.0',
        'fdt_job_samples_total{job="job-1",mode="async"} 64.0',
        'fdt_job_exchange_seconds_total{job="job-1",mode="async"} 2.0',
        'fdt_job_exchanged_bytes_total{job="job-1",mode="async"} 1500.0',
        # (0 * 3 + 2 * 1 + 1 * 2) / 6
        f'fdt_job_delay_mean{{job="job-1",mode="async"}} {4 / 6}',
        f"fdt_worker_heartbeat_age_seconds{{{first}}} 0.25",
        f"fdt_worker_busy_cores{{{first}}} 1.5",
        f"fdt_worker_memory_bytes{{{first}}} 42.0",
        'fdt_gpu_utilization{gpu="1",host="",job="job-2",state="serving",worker="w-1"} 0.5',
    ):
        assert expected in lines, "\n".join(lines)
    assert not any(line.startswith("fdt_worker_busy_cores") and "w-2" in line for line in lines)


def test_a_series_keeps_its_length_and_its_ends() -> None:
    series = Series(limit=8)
    for number in range(1000):
        series.add(job_pb2.Sample(time_s=number))
    times = [sample.time_s for sample in series.samples()]
    assert 4 <= len(times) <= 8 and times[0] == 0 and times[-1] >= 1000 - 256
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {128.0}


def test_a_sample_tells_of_this_process() -> None:
    sampler = Sampler()
    sum(range(3_000_000))
    sample = sampler.take()
    assert 0 < sample.cores < 64 and sample.memory_bytes > 1_000_000
