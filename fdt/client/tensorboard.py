"""Writes the resource usage of a run's processes as scalars for TensorBoard: `fdt run --tensorboard DIR`."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from fdt.errors import UsageError
from fdt.v1 import job_pb2


def write(directory: Path, processes: Sequence[job_pb2.ProcessUsage]) -> None:
    """Writes an event file for each process; the step is in seconds since the first sample of all.

    Raises:
        UsageError: The directory cannot be written.
    """
    import tensorflow as tf

    begin_s = min((sample.time_s for process in processes for sample in process.samples), default=0.0)
    for process in processes:
        name = f"rank {process.rank}" + (f" on {process.host}" if process.host else "")
        try:
            writer = tf.summary.create_file_writer(str(directory / name.replace("/", "_")))
            with writer.as_default():
                for sample, tag, value in _scalars(process):
                    tf.summary.scalar(f"system/{tag}", value, step=round(sample.time_s - begin_s))
            writer.close()
        except (OSError, tf.errors.OpError) as error:
            raise UsageError(f"cannot write TensorBoard's files to {directory}: {error}") from error


def _scalars(process: job_pb2.ProcessUsage) -> Iterator[tuple[job_pb2.Sample, str, float]]:
    for sample in process.samples:
        yield sample, "busy cores", sample.cores
        yield sample, "memory, MB", sample.memory_bytes / 1e6
        for gpu in sample.gpus:
            yield sample, f"GPU {gpu.index}, utilization", gpu.utilization
            yield sample, f"GPU {gpu.index}, memory, MB", gpu.memory_bytes / 1e6
    for before, sample in itertools.pairwise(process.samples):
        elapsed_s = max(1e-6, sample.time_s - before.time_s)
        yield sample, "host sends, MB a second", (sample.sent_bytes - before.sent_bytes) / elapsed_s / 1e6
        yield sample, "host receives, MB a second", (sample.received_bytes - before.received_bytes) / elapsed_s / 1e6
