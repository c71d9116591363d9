"""A client of the toy runtime: jobs whose state tells which steps made it, and pools in processes of their own."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import psutil

from fdt.base.config import RunConfig
from fdt.client.job import Job
from fdt.transport.blob_client import BlobClient
from fdt.v1 import graph_pb2, job_pb2, program_pb2
from tests.helpers.chain_engine import chained
from tests.helpers.chain_pool import TIMING
from tests.helpers.processes import PYTHON, Background, background, children_of
from tests.helpers.toy_engine import ROOT
from tests.helpers.waiting import wait_until

TOKEN = "a token for these tests"
ALL = job_pb2.Drain.WHAT_ALL
# How often the state is looked at, in steps.
_LOOK_STEPS = 30


def begin(
    channel: grpc.Channel,
    address: str,
    options: Mapping[str, str],
    workers: range | None = None,
    num_workers: int = 2,
    reconnect_s: float = TIMING.reconnect_s,
) -> Job:
    """Asks a pool for a job of the toy runtime."""
    timing = dataclasses.replace(TIMING, reconnect_s=reconnect_s)
    config = RunConfig("toy.py", num_workers=num_workers, options=options, timing=timing)
    return Job(channel, address, config, BlobClient(channel, timing), workers)


def toy_program(number: int) -> program_pb2.StepProgram:
    """Returns one program of several that do the same."""
    graph = graph_pb2.GraphDef(node=[graph_pb2.NodeDef(name=f"node_{number}", op="NoOp")])
    meta_graph = graph_pb2.MetaGraphDef(graph_def=graph).SerializeToString()
    return program_pb2.StepProgram(step=program_pb2.Function(meta_graph=meta_graph))


def indices(row: int) -> bytes:
    """Returns the batch that has one row."""
    return np.int64(row).tobytes()


def value_of(values: bytes) -> int:
    """Returns the chain's value in a state or in outputs."""
    return int(np.frombuffer(values, "<i8")[0])


def rows_of(num_steps: int, seed: int = 0) -> np.ndarray:
    """Returns a row for each step, float64 [num_steps]."""
    return np.random.default_rng(seed).integers(0, 1000, num_steps).astype("float64")


def values_after(rows: Sequence[float]) -> list[int]:
    """Returns the chain's value after each step."""
    values = [0]
    for row in rows:
        values.append(chained(values[-1], row))
    return values[1:]


def trained_through(job: Job, rows: np.ndarray, faults: Mapping[int, Callable[[], object]]) -> None:
    """Trains all steps, with faults before some of them; asserts that each counts once and in its place."""
    values = values_after(rows)
    spec = program_pb2.Tensor(name="x", dtype="float64", shape=[len(rows)])
    program, data = job.load(toy_program(6), job), job.bind([rows.view(np.uint8)], [spec])
    for number, value in enumerate(values):
        faults.get(number, lambda: None)()
        job.run(program, data, indices(number))
        if number % _LOOK_STEPS == _LOOK_STEPS - 1 or number == len(rows) - 1:
            found = value_of(job.drain(program, ALL).contents[0])
            assert found == value, f"step {number + 1}: the state is {found}, and each step once makes {value}"


def forks_workers(pool: int) -> psutil.Process:
    """Returns the process of a pool from which its workers are forked; a pool that has just begun to listen starts it yet."""

    def found() -> list[psutil.Process]:
        forked = children_of(pool, "fdt.worker.forkserver")
        return [process for process in forked if process.ppid() == pool]

    wait_until(found, lambda: f"process {pool} has no forkserver", limit_s=30.0)
    (one,) = found()
    return one


@contextmanager
def pool_process(
    port: int,
    folder: Path,
    num_workers: int = 2,
    state: Path | None = None,
    *options: str,
) -> Iterator[tuple[Background, int]]:
    """A pool in a process of its own, with a folder that no pool before it had; yields its port, too."""
    command = [PYTHON, "-m", "tests.helpers.chain_pool", str(port), str(folder), TOKEN, "--workers", str(num_workers)]
    command += [] if state is None else ["--state", str(state)]
    with background([*command, *options], cwd=ROOT) as process:
        line = process.wait_for_line("listens on", limit_s=60.0)
        yield process, int(line.rpartition(":")[2])
