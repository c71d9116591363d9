"""Who writes a snapshot, or takes it over, is killed, at any moment and at each point of it: a whole one is found each time.

FDT_SNAPSHOT_KILLS=500 for more (`make faults`).
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest

from fdt.base.config import Credentials
from fdt.client.job import Job
from fdt.client.recovery import Recovery
from fdt.transport import rpc
from fdt.v1 import program_pb2
from tests.helpers import failpoints
from tests.helpers.chain_engine import chained
from tests.helpers.chain_job import (
    ALL,
    TOKEN,
    begin,
    forks_workers,
    indices,
    pool_process,
    rows_of,
    toy_program,
    trained_through,
    value_of,
)
from tests.helpers.chain_pool import TIMING
from tests.helpers.thorough import some_of

KILLS = int(os.environ.get("FDT_SNAPSHOT_KILLS", "3"))
ROWS = 1000
# A state of 4 MB takes about as long to write as a process lives at most once it is to die, and is written in four pieces.
WORDS = str(1 << 19)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots come as soon as there may be another, whatever they cost."""
    monkeypatch.setattr("fdt.client.snapshot_interval._SHARE", 1.0)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pool_process(0, tmp_path_factory.mktemp("p") / "pool") as (_, port):
        yield f"127.0.0.1:{port}"


def killed_often(address: str, number: int, options: dict[str, str]) -> None:
    """Trains until workers have been killed so often when there was a snapshot to begin again from."""
    with (
        rpc.connect(address, Credentials(TOKEN), TIMING) as channel,
        closing(begin(channel, address, {"step_s": "0.001", "words": WORDS, **options})) as job,
    ):
        train_until_killed(job, number)


def train_until_killed(job: Job, number: int) -> None:
    rows, value, step = rows_of(ROWS), 0, 0
    spec = program_pb2.Tensor(name="x", dtype="float64", shape=[ROWS])
    program, data = job.load(toy_program(13), job), job.bind([rows.view(np.uint8)], [spec])
    # Until the first snapshot is there, none can be found: such a kill does not count.
    while sum(fault.step > fault.repeated for fault in job.faults) < number:
        assert step < 10_000 * number, "workers are not killed"
        job.run(program, data, indices(step % ROWS))
        value = chained(value, rows[step % ROWS])
        step += 1
    assert value_of(job.drain(program, ALL).contents[0]) == value, "each step counts once"
    faults = job.faults
    assert all("SIGKILL" in fault.cause for fault in faults)
    snapshots = [fault.step - fault.repeated for fault in faults]
    assert snapshots == sorted(snapshots), "never one that is older than the one before"
    later = [found for found in snapshots if found]
    assert len(later) >= number and len(set(later)) > len(later) / 4
    print(f"{len(faults)} kills, {step} steps, {sum(fault.repeated for fault in faults)} made again")


def test_a_worker_is_killed_at_random_moments(address: str) -> None:
    killed_often(address, KILLS, {"dies": "0.9:0.01"})


@pytest.mark.parametrize(
    "point", some_of(failpoints.OF_WORKER, ["in the middle", "before the rename", "after the rename"])
)
def test_a_worker_is_killed_at_a_point_of_writing(address: str, point: str) -> None:
    killed_often(address, max(2, KILLS // 10), {"point": point})


@pytest.mark.parametrize(
    "point", some_of(failpoints.OF_POOL, ["before the pool takes it over", "before the client knows"])
)
def test_the_pool_is_killed_when_it_takes_a_snapshot_over(tmp_path: Path, point: str) -> None:
    with ExitStack() as stack:
        process, port = stack.enter_context(pool_process(0, tmp_path / "first", 2, None, "--point", point))

        def replace() -> None:
            process.process.wait(TIMING.reconnect_s)
            stack.enter_context(pool_process(port, tmp_path / "second"))

        other = threading.Thread(target=replace, name="another pool")
        other.start()
        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"})
        trained_through(job, rows_of(300), {})
        other.join()
        assert process.process.returncode == -9, "it was killed there"
        (fault,) = job.faults
        assert "The connection to the pool was lost" in fault.cause
        job.close()
        channel.close()


def test_a_snapshot_with_a_flipped_bit_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every snapshot on the pool is damaged when a worker dies; the one that came home is used."""
    monkeypatch.setattr("fdt.client.recovery._HOME_S", 0.0)
    rows = rows_of(300)
    with pool_process(0, tmp_path / "pool") as (process, port):
        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"})

        def ask_no_more() -> None:
            monkeypatch.setattr(Recovery, "is_due", False)

        def damage() -> None:
            for path in (tmp_path / "pool" / "blobs").glob("once-*"):
                # The pool may give up one that is not needed any more in between.
                with suppress(FileNotFoundError), open(path, "r+b") as file:
                    file.seek(1000)
                    flipped = bytes([file.read(1)[0] ^ 1])
                    file.seek(1000)
                    file.write(flipped)
            forks_workers(process.pid).children()[0].kill()

        # Between the two is a question whose answer comes behind those of all snapshots.
        trained_through(job, rows, {185: ask_no_more, 215: damage})
        (fault,) = job.faults
        assert fault.step - fault.repeated > 0, "not from the beginning"
        job.close()
        channel.close()
        assert "A blob has changed since it was written" in process.so_far().stderr
    assert "its disk has changed it: one before is used" in capfd.readouterr().err
