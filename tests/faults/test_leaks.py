"""Many jobs one after the other, and many clients at once: the pool is afterwards what it was before.

FDT_LEAK_JOBS=200 FDT_LEAK_CLIENTS=20 for more (`make faults`).
"""

import dataclasses
import os
import threading
import time
from pathlib import Path

import grpc
import psutil

from fdt.base.config import Credentials
from fdt.transport import rpc
from tests.helpers.chain_job import TOKEN, begin, pool_process, rows_of, trained_through
from tests.helpers.chain_pool import TIMING

JOBS, CLIENTS = (int(os.environ.get(f"FDT_LEAK_{name}", few)) for name, few in (("JOBS", "20"), ("CLIENTS", "6")))
STEPS = 20
# Until workers of jobs that have ended are replaced.
SETTLE_S = 20.0
# Of the pool's processes: what Python's allocator keeps, for all jobs together.
SLACK_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class Account:
    """What a pool has: its processes, their descriptors, files in its folder and in shared memory."""

    processes: int
    descriptors: int
    files: int
    shared: int
    memory_bytes: int


def account(pool: psutil.Process, folder: Path) -> Account:
    processes = [pool, *pool.children(recursive=True)]
    # Of those that serve no job: workers come and go.
    stay = [pool, *pool.children()]
    files = sum(len(names) for root, _, names in os.walk(folder) if Path(root).name != "logs")
    return Account(
        processes=len(processes),
        descriptors=sum(process.num_fds() for process in stay),
        files=files,
        shared=len(os.listdir("/dev/shm")),
        memory_bytes=sum(process.memory_full_info().uss for process in stay),
    )


def settled(pool: psutil.Process, folder: Path, before: Account | None = None) -> Account:
    """Returns the account once it is as before, or has not changed for a while."""
    end_s, last, since_s = time.monotonic() + SETTLE_S, None, time.monotonic()
    while True:
        try:
            now = account(pool, folder)
        except psutil.NoSuchProcess:
            continue
        counted = dataclasses.replace(now, memory_bytes=0)
        if counted != last:
            last, since_s = counted, time.monotonic()
        is_as_before = before is not None and counted == dataclasses.replace(before, memory_bytes=0)
        is_still = before is None and time.monotonic() - since_s > 2.0
        if is_as_before or is_still or time.monotonic() > end_s:
            return now


def trained(channel: grpc.Channel, address: str, seed: int) -> None:
    job = begin(channel, address, {"step_s": "0.001"}, num_workers=1)
    trained_through(job, rows_of(STEPS, seed), {})
    job.close()


def test_nothing_is_left_of_many_jobs(tmp_path: Path) -> None:
    with pool_process(0, tmp_path / "pool", num_workers=2) as (process, port):
        address, pool = f"127.0.0.1:{port}", psutil.Process(process.pid)
        failed: list[BaseException] = []

        def client(number: int) -> None:
            try:
                channel = rpc.connect(address, Credentials(TOKEN), TIMING)
                trained(channel, address, number % 4)
                channel.close()
            except BaseException as error:
                failed.append(error)

        def at_once() -> None:
            threads = [threading.Thread(target=client, args=(n,), name=f"client-{n}") for n in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        # What is made once: threads for so many calls, Python's caches, arrays that are kept for jobs to come.
        for number in range(10):
            client(number)
        at_once()
        before = settled(pool, tmp_path)
        for number in range(JOBS):
            client(number)
        one_by_one = settled(pool, tmp_path, before)
        at_once()
        many = settled(pool, tmp_path, before)
        print("\nbefore    ", before, "\none by one", one_by_one, "\nat once   ", many)
        assert failed == []
        for after in (one_by_one, many):
            assert dataclasses.replace(after, memory_bytes=before.memory_bytes) == before
            assert after.memory_bytes - before.memory_bytes < SLACK_BYTES
