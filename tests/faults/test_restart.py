"""A pool is asked to go down (SIGTERM) and started again: its jobs are put away and go on, its list of jobs stays."""

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from fdt.base.config import Credentials
from fdt.client.recovery import Recovery
from fdt.errors import PoolRestartingError
from fdt.pool.journal import Journal
from fdt.transport import rpc, statuses
from fdt.v1 import pool_pb2, pool_pb2_grpc
from tests.helpers.chain_job import ALL, TOKEN, begin, pool_process, rows_of, toy_program, trained_through
from tests.helpers.chain_pool import GRACE_S, TIMING
from tests.helpers.processes import Background


def listed(channel: grpc.Channel) -> list[pool_pb2.JobSummary]:
    return list(pool_pb2_grpc.PoolStub(channel).ListJobs(pool_pb2.ListJobsRequest(), timeout=10.0).jobs)


class Restarts:
    """A pool that is started again and again at one port, with one state folder."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self.state = folder / "state"
        self.pools: list[Background] = []
        self.port = 0
        self.start()
        self.address = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        pool = pool_process(self.port, self._folder / str(len(self.pools)), state=self.state)
        process, self.port = self._stack.enter_context(pool)
        self.pools.append(process)

    def end(self, number: int) -> int:
        process = self.pools[-1].process
        process.send_signal(number)
        return process.wait(2 * GRACE_S)

    def again(self, number: int) -> Callable[[], None]:
        """Returns what ends the pool by a signal and starts another."""

        def restart() -> None:
            assert self.end(number) == (0 if number == signal.SIGTERM else -number)
            self.start()

        return restart


def test_a_job_is_put_away_and_goes_on_when_the_pool_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[int] = []
    bring = Recovery._bring_home

    def noted(recovery: Recovery, base: object) -> None:
        bring(recovery, base)  # type: ignore[arg-type]
        homes.append(recovery._replay_log.home.steps)

    monkeypatch.setattr(Recovery, "_bring_home", noted)
    # Only because it goes down.
    monkeypatch.setattr("fdt.client.recovery._HOME_S", 1e6)
    with ExitStack() as stack:
        pools = Restarts(stack, tmp_path)
        channel = rpc.connect(pools.address, Credentials(TOKEN), TIMING)
        job = begin(channel, pools.address, {"step_s": "0.003"})
        trained_through(job, rows_of(120), dict.fromkeys((20, 60, 100), pools.again(signal.SIGTERM)))
        assert len(pools.pools) == 4
        assert [fault.cause for fault in job.faults] == ["The pool goes down to be started again."] * 3
        # Each snapshot has what had been made: next to nothing is made again.
        assert homes[-1] >= 90 and all(fault.repeated <= 5 for fault in job.faults), (homes, job.faults)
        job.close()
        states = [(each.job, each.state, each.reason) for each in listed(channel)]
        assert states == [
            *((f"job-{n}", "interrupted", f"goes on as job-{n + 1}") for n in (1, 2, 3)),
            ("job-4", "finished", ""),
        ]
        channel.close()


def test_killed_and_going_down_in_turn(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pools = Restarts(stack, tmp_path)
        channel = rpc.connect(pools.address, Credentials(TOKEN), TIMING)
        job = begin(channel, pools.address, {"step_s": "0.003"})
        kill, term = pools.again(signal.SIGKILL), pools.again(signal.SIGTERM)
        trained_through(job, rows_of(120), {10: kill, 11: term, 50: term, 51: kill, 90: kill})
        job.close()
        names = [each.job for each in listed(channel)]
        assert len(set(names)) == len(names) >= 4, "a name never comes again"
        channel.close()


def test_a_pool_that_goes_down_takes_no_jobs_and_tells_those_that_wait(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pools = Restarts(stack, tmp_path)
        channel = rpc.connect(pools.address, Credentials(TOKEN), TIMING)
        # A client that does not come back, so the pool waits for it as long as it may.
        running = begin(channel, pools.address, {"step_s": "0.003"}, reconnect_s=0.0)
        program = running.load(toy_program(7), running)
        running.drain(program, ALL)
        waiting = begin(channel, pools.address, {})
        waiting.load(toy_program(8), waiting)
        pools.pools[-1].process.send_signal(signal.SIGTERM)
        described = pool_pb2_grpc.PoolStub(channel).Describe

        def refusal() -> str:
            while True:
                try:
                    with statuses.translated():
                        described(pool_pb2.DescribeRequest(), timeout=5.0)
                except PoolRestartingError as error:
                    return str(error)

        assert "takes no jobs until then" in refusal()
        assert pools.pools[-1].process.poll() is None, "it gives the running job its time"
        running.close()
        assert pools.pools[-1].process.wait(GRACE_S) == 0
        pools.start()
        program = waiting.load(toy_program(9), waiting)
        waiting.drain(program, ALL)
        waiting.close()
        channel.close()


def test_the_state_folder_is_deleted_while_the_pool_runs_and_between_two(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pools = Restarts(stack, tmp_path)
        channel = rpc.connect(pools.address, Credentials(TOKEN), TIMING)

        def delete() -> None:
            shutil.rmtree(pools.state)

        def between() -> None:
            pools.end(signal.SIGKILL)
            delete()
            pools.start()

        job = begin(channel, pools.address, {"step_s": "0.003"})
        trained_through(job, rows_of(120), {30: delete, 60: between})
        job.close()
        end_s = time.monotonic() + 10.0
        while listed(channel)[-1].state != "finished" and time.monotonic() < end_s:
            pass
        channel.close()
        pools.end(signal.SIGTERM)
        journal = Journal(pools.state)
        newest = journal.entries()[-1]
        assert (newest.state, newest.steps > 0) == ("finished", True)
        journal.close()
