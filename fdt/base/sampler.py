"""Samples what this process and its host use: cores, memory, network, GPUs."""

import contextlib
import os
import sys
import time
from types import ModuleType

import psutil

from fdt.v1 import job_pb2

# With more, every second one is dropped, so that a week's run takes no more room than one of minutes.
_MAX_SAMPLES = 1024


# An open file with the kernel's traffic counters; it keeps showing the network namespace in which it was opened.
_counters: list[int] = []


def keep_network() -> None:
    """Makes this process and its forks count the traffic of the current network namespace, also after they leave it.

    For that it opens a descriptor, which forked processes must keep open.
    """
    if sys.platform == "linux":
        _counters.append(os.open("/proc/self/net/dev", os.O_RDONLY))


def moved_bytes() -> tuple[int, int]:
    """Returns how many bytes the host has sent and received, over all interfaces."""
    if not _counters:
        total = psutil.net_io_counters()
        return (total.bytes_sent, total.bytes_recv) if total else (0, 0)
    # The kernel returns one page per read.
    text = b""
    while part := os.pread(_counters[-1], 1 << 16, len(text)):
        text += part
    lines = text.decode().splitlines()[2:]
    fields = [line.partition(":")[2].split() for line in lines]
    return sum(int(each[8]) for each in fields), sum(int(each[0]) for each in fields)


class Sampler:
    """Takes samples of this process and its host."""

    def __init__(self) -> None:
        """Finds the GPUs, if NVIDIA's library is installed (nvidia-ml-py) and there are any."""
        self._process = psutil.Process()
        self._nvml = _nvml()
        self._before = self._busy_s(), time.monotonic()

    def take(self) -> job_pb2.Sample:
        """Returns a sample; its `cores` are the mean since the one before."""
        busy_s, now_s = self._busy_s(), time.monotonic()
        elapsed_s = max(1e-6, now_s - self._before[1])
        cores = (busy_s - self._before[0]) / elapsed_s
        self._before = busy_s, now_s
        sent_bytes, received_bytes = moved_bytes()
        return job_pb2.Sample(
            time_s=time.time(),
            cores=round(max(0.0, cores), 3),
            memory_bytes=self._process.memory_info().rss,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            gpus=self._gpus(),
        )

    def _busy_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _gpus(self) -> list[job_pb2.Gpu]:
        if self._nvml is None:
            return []
        gpus = []
        # A GPU may fall off the bus; training reports that better than a sample.
        with contextlib.suppress(self._nvml.NVMLError):
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                gpus.append(job_pb2.Gpu(index=index, utilization=rates.gpu / 100, memory_bytes=memory.used))
        return gpus


def _nvml() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    module: ModuleType = pynvml
    return module


class Series:
    """Keeps samples of a process, evenly spaced over its life."""

    def __init__(self, limit: int = _MAX_SAMPLES) -> None:
        """Makes an empty series.

        Args:
            limit: How many are kept; with more, every second one is dropped.
        """
        self._limit, self._steps_per_call, self._seen = limit, 1, 0
        self._samples: list[job_pb2.Sample] = []

    def add(self, sample: job_pb2.Sample) -> None:
        """Adds a sample, or drops it to keep the spacing."""
        if self._seen % self._steps_per_call == 0:
            self._samples.append(sample)
            if len(self._samples) > self._limit:
                self._samples = self._samples[::2]
                self._steps_per_call *= 2
        self._seen += 1

    def samples(self) -> list[job_pb2.Sample]:
        """Returns the kept samples, in the order of time."""
        return list(self._samples)
