"""Workers of a toy runtime die by schedule while a client trains: every step counts once, in order, and nothing is left.

The schedule is a seed. The engine's state is a chain of the steps that made it (`tests.helpers.chain_engine`), so a step that
was lost, doubled or out of order shows in its last value.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from fdt.base.config import Credentials, ServeConfig
from fdt.client import recovery
from fdt.client.answers import StepResult
from fdt.client.job import Job
from fdt.errors import JobError, PoolUnreachableError, ProtocolError, StepError, WorkerError
from fdt.pool.server import Server
from fdt.transport import rpc
from fdt.v1 import program_pb2
from tests.helpers.chain_engine import ChainLauncher, chained
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
    values_after,
)
from tests.helpers.chain_pool import TIMING
from tests.helpers.cut import Way
from tests.helpers.thorough import some_of
from tests.helpers.toy_engine import ROOT

NUM_STEPS, NUM_FAULTS = 120, 4
SPEC = program_pb2.Tensor(name="x", dtype="float64", shape=[NUM_STEPS])


class Pool:
    """A server in this process."""

    def __init__(self, folder: Path) -> None:
        config = ServeConfig(listen="127.0.0.1:0", token=TOKEN, timing=TIMING, num_workers=2, walls=False)
        self.server = Server(config, {"sync": ChainLauncher()}, folder)
        self.address, self.store = self.server.start(), folder / "blobs"
        self.jobs: list[Job] = []
        self._channel = rpc.connect(self.address, Credentials(TOKEN), TIMING)

    def train(self, **options: str) -> Job:
        self.jobs.append(begin(self._channel, self.address, options))
        return self.jobs[-1]

    def close(self) -> None:
        self._channel.close()
        self.server.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        pool = Pool(tmp_path_factory.mktemp("p"))
        yield pool
        pool.close()


@pytest.fixture
def pool(running: Pool) -> Iterator[Pool]:
    """The pool; a test's jobs end with it."""
    yield running
    while running.jobs:
        running.jobs.pop().close()


def schedule(seed: int, values: list[int]) -> str:
    """Returns faults of a run, by the chain's values at which they fire."""
    chosen = random.Random(seed)
    steps = chosen.sample(range(len(values)), NUM_FAULTS)
    return ",".join(f"{chosen.choice(['kill', 'kill', 'stop'])}:{chosen.randrange(2)}:{values[step]}" for step in steps)


@pytest.mark.parametrize("seed", some_of(range(6), [0, 1]))
@pytest.mark.parametrize("streams", [False, True], ids=["arrays", "streamed"])
def test_every_step_counts_once(pool: Pool, tmp_path: Path, seed: int, streams: bool) -> None:
    rows = rows_of(NUM_STEPS, seed)
    values = [0, *values_after(rows)]
    faults = schedule(seed, values[1:])
    job = pool.train(faults=faults, fired=str(tmp_path), step_s="0.003")
    program = job.load(toy_program(0), job)
    job.assign(program, [0], [np.zeros(1 << 16, "<i8")])
    data = None if streams else job.bind([rows.view(np.uint8)], [SPEC])
    wanted = random.Random(seed).sample(range(NUM_STEPS), 5)
    for number in range(NUM_STEPS):
        if data is None:
            spec = program_pb2.Tensor(name="x", dtype="float64", shape=[1])
            given = np.array([rows[number]]).view(np.uint8)
            result = job.feed(program, [given], [spec], results=True)
            assert result is not None
            if number in wanted:
                assert value_of(result.outputs()) == values[number + 1]
                given[:] = 255  # its owner may write to it now
        else:
            job.run(program, data, indices(number))
            if number in wanted:
                assert value_of(job.drain(program, ALL).contents[0]) == values[number + 1]
    assert value_of(job.drain(program, ALL).contents[0]) == values[-1]
    fired = sorted(path.name for path in tmp_path.iterdir())
    assert fired == sorted(faults.split(",")), "every fault of the schedule"
    # Two that are noticed together are one.
    assert 1 <= len(job.faults) <= NUM_FAULTS
    assert all(fault.workers == 2 and ("SIGKILL" in fault.cause or "stopped" in fault.cause) for fault in job.faults)


def test_two_programs_that_hand_each_other_their_state(pool: Pool, tmp_path: Path) -> None:
    rows = np.arange(1.0, NUM_STEPS + 1)
    expected = [0, *values_after(rows)]
    faults = ",".join(f"kill:0:{expected[step]}" for step in (7, 40, 41, 90))
    job = pool.train(faults=faults, fired=str(tmp_path), step_s="0.003")
    programs = [job.load(toy_program(number), job) for number in (1, 2)]
    data = job.bind([rows.view(np.uint8)], [SPEC])
    for number in range(NUM_STEPS):
        now, before = programs[number % 2], programs[(number + 1) % 2]
        if number:
            job.move(now, [0], before, [0])
        job.run(now, data, indices(number))
    assert value_of(job.drain(programs[(NUM_STEPS - 1) % 2], ALL).contents[0]) == expected[-1]
    assert len(list(tmp_path.iterdir())) == 4


def test_programs_that_come_and_go(pool: Pool, tmp_path: Path) -> None:
    """As a grid search has them: each takes over the state of the one before, and is forgotten; a fault in every third."""

    class Model:
        pass

    rows = np.arange(1.0, 121.0)
    expected = [0, *values_after(rows)]
    faults = ",".join(f"kill:{step % 2}:{expected[step]}" for step in range(5, 120, 30))
    job = pool.train(faults=faults, fired=str(tmp_path), step_s="0.003")
    data = job.bind([rows.view(np.uint8)], [SPEC])
    value, numbers = 0, []
    for first in range(0, 120, 10):
        model = Model()
        numbers.append(job.load(toy_program(100 + first), model))
        job.assign(numbers[-1], [0], [np.array(value, "<i8")])
        for step in range(first, first + 10):
            job.run(numbers[-1], data, indices(step))
        del model
        value = value_of(job.drain(numbers[-1], ALL).contents[0])
    assert value == expected[-1]
    assert len(list(tmp_path.iterdir())) == 4 == len(job.faults)
    assert len(set(numbers)) == 12
    job.run(numbers[-1], data, indices(0))
    with pytest.raises(WorkerError, match="KeyError"):
        # The first one is gone from the workers.
        job.run(numbers[0], data, indices(0))
        job.drain(numbers[0], ALL)


def test_a_fault_of_the_steps_own_ends_the_job_with_its_reason(pool: Pool) -> None:
    """Without a folder for what has fired it fires each time: the third time in a row it is told."""
    rows = np.arange(1.0, NUM_STEPS + 1)
    job = pool.train(faults=f"kill:1:{values_after(rows[:9])[-1]}")
    program, data = job.load(toy_program(3), job), job.bind([rows.view(np.uint8)], [SPEC])
    for number in range(9):
        job.run(program, data, indices(number))
    # The client knows the steps that it was told of; a rank may die before it has told of its last ones.
    expected = r"(?s)Rank 1 of job .* ended with signal 9 \(SIGKILL\).*It is the third fault in a row at step [0-9]: "
    with pytest.raises(WorkerError, match=expected):
        job.drain(program, ALL)
    assert job.failed


def test_an_error_in_a_step_is_told_at_once(pool: Pool, tmp_path: Path) -> None:
    rows = np.arange(1.0, NUM_STEPS + 1)
    job = pool.train(faults=f"raise:0:{chained(0, rows[0])}", fired=str(tmp_path))
    program, data = job.load(toy_program(4), job), job.bind([rows.view(np.uint8)], [SPEC])
    job.run(program, data, indices(0))
    with pytest.raises(WorkerError, match="a fault of the step's own"):
        job.drain(program, ALL)
    assert job.failed and job.faults == []


@pytest.mark.parametrize("results", [False, True], ids=["arrays", "streamed"])
def test_a_step_that_fails_and_those_behind_it_have_not_happened(pool: Pool, results: bool) -> None:
    """It fails each time that it is made; the job goes on without it."""
    rows = np.arange(1.0, NUM_STEPS + 1)
    values, bad = values_after(rows[:60]), 41
    job = pool.train(faults=f"refuse:0:{values[bad]}", step_s="0.003")
    program, data = job.load(toy_program(23), job), job.bind([rows.view(np.uint8)], [SPEC])
    spec = program_pb2.Tensor(name="x", dtype="float64", shape=[1])

    def step(number: int) -> StepResult | None:
        if results:
            return job.feed(program, [rows[number : number + 1].view(np.uint8)], [spec], results=True)
        job.run(program, data, indices(number))
        return None

    given: dict[int, StepResult | None] = {}
    with pytest.raises(StepError, match="a label is out of range") as raised:
        for number in range(60):
            given[number] = step(number)
        job.drain(program, ALL)
    assert raised.value.step.code == 3
    job.leave_out_failed_step()
    assert job.num_steps == bad
    assert value_of(job.drain(program, ALL).contents[0]) == values[bad - 1]
    for number, result in given.items() if results else ():
        if number < bad:
            assert value_of(result.outputs()) == values[number]
        else:
            with pytest.raises(StepError):
                result.outputs()
    job.leave_out_failed_step()
    for number in range(bad + 1, 60):
        given[number] = step(number)
    expected = values_after(np.delete(rows[:60], bad))
    assert value_of(job.drain(program, ALL).contents[0]) == expected[-1]
    if results:
        assert value_of(given[59].outputs()) == expected[-1]
    assert not job.failed and job.faults == []


def test_a_step_that_was_made_is_not_taken_for_one_that_failed(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is lost behind it, and what it reads has changed: it cannot be made again, and the job ends."""
    monkeypatch.setattr("fdt.client.recovery.Recovery.is_due", False)
    rows = np.arange(1.0, NUM_STEPS + 1)
    values = values_after(rows[:9])
    job = pool.train(faults=f"spoiled:0:{values[2]},kill:0:{values[6]}", fired=str(tmp_path))
    program, data = job.load(toy_program(24), job), job.bind([rows.view(np.uint8)], [SPEC])
    for number in range(5):
        job.run(program, data, indices(number))
    assert value_of(job.drain(program, ALL).contents[0]) == values[4]
    (tmp_path / "spoiled").touch()
    for number in range(5, 9):
        job.run(program, data, indices(number))
    with pytest.raises(JobError, match="step 3 had been made, and fails now"):
        job.drain(program, ALL)
    assert job.failed and job.num_steps == 9


def test_nothing_is_left_of_what_was_kept(pool: Pool, tmp_path: Path) -> None:
    """Arrays that are named by their content may serve again; what served once is gone."""
    rows = np.arange(1.0, NUM_STEPS + 1)

    def trained(faults: str = "") -> Job:
        job = pool.train(step_s="0.003", faults=faults, fired=str(tmp_path))
        program, data = job.load(toy_program(5), job), job.bind([rows.view(np.uint8)], [SPEC])
        for number in range(NUM_STEPS):
            job.run(program, data, indices(number))
        job.drain(program, ALL)
        return job

    def once() -> set[str]:
        return {path.name for path in pool.store.iterdir() if path.name.startswith("once-")}

    # What earlier tests' jobs have left is held for their clients.
    before = once()
    survivor = trained(f"kill:0:{chained(0, rows[0])}")
    assert len(survivor.faults) == 1
    survivor.close()
    # The pool does one thing after the other: when the next job answers, the one before has ended.
    other = trained()
    snapshots = once() - before
    assert 1 <= len(snapshots) <= 2, "the newest of this job, and one on its way"
    other.close()
    pool.jobs.clear()
    trained()
    assert not snapshots & once()


def test_a_variable_that_nobody_has_assigned_is_not_given_out(pool: Pool) -> None:
    """The engine, which has a zero there, is not even asked."""
    variables = [program_pb2.Variable(tensor=program_pb2.Tensor(name="chain", dtype="int64"))]
    source = toy_program(21)
    source.variables.extend(variables)
    job = pool.train()
    program, data = job.load(source, job), job.bind([np.ones(1).view(np.uint8)], [SPEC])
    answer = job.drain(program, ALL)
    assert (list(answer.state.variables), bytes(answer.contents[0])) == ([], b"")
    job.assign(program, [0], [np.array(5, "<i8")])
    assert value_of(job.drain(program, ALL).contents[0]) == 5
    program = job.load(program_pb2.StepProgram(step=toy_program(22).step, variables=variables), job)
    job.run(program, data, indices(0))
    with pytest.raises(ProtocolError, match="'chain' first"):
        job.drain(program, ALL)


def test_two_clients_that_begin_with_the_same_state(pool: Pool) -> None:
    """What the first has sent is gone when it has served, and the second, which waits, has its own."""
    state = np.full(1 << 16, 7, "<i8")
    jobs = [pool.train(), pool.train()]
    for job in jobs:
        job.assign(job.load(toy_program(20), job), [0], [state])

    def served(job: Job) -> int:
        with closing(job):
            return value_of(job.drain(0, ALL).contents[0])

    # Which of them came to the pool first is left open.
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(served, jobs)) == [7, 7]
    pool.jobs.clear()


def test_the_pool_is_killed_and_started_again_with_nothing_of_what_it_had(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process, port = stack.enter_context(pool_process(0, tmp_path / "0"))
        pools = [process]

        def again() -> None:
            pools[-1].process.kill()
            pools.append(stack.enter_context(pool_process(port, tmp_path / str(len(pools))))[0])

        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"})
        trained_through(job, rows_of(NUM_STEPS), dict.fromkeys((5, 40, 41, 100), again))
        assert len(pools) == 5 and 3 <= len(job.faults) <= 4
        job.close()
        channel.close()


def test_the_connection_is_cut_ten_times(running: Pool) -> None:
    cut: list[int] = []
    with (
        closing(Way(int(running.address.rpartition(":")[2]))) as way,
        rpc.connect(way.address, Credentials(TOKEN), TIMING) as channel,
        closing(begin(channel, way.address, {"step_s": "0.003"})) as job,
    ):
        trained_through(job, rows_of(NUM_STEPS), dict.fromkeys(range(6, NUM_STEPS, 12), lambda: cut.append(way.cut())))
        assert len(cut) == 10
        # Some came while there was no connection.
        assert sum(map(bool, cut)) >= 5 and 5 <= len(job.faults) <= 10
        assert all("The connection to the pool was lost" in fault.cause for fault in job.faults)


def test_the_job_goes_on_with_fewer_workers_and_takes_more_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller pool takes the place of a larger one, then a larger one that of the smaller."""
    monkeypatch.setattr(recovery, "_MORE_S", 0.0)
    with ExitStack() as stack:
        process, port = stack.enter_context(pool_process(0, tmp_path / "first", 3))
        pools = [process]

        def with_workers(num_workers: int) -> None:
            pools[-1].process.kill()
            pool = pool_process(port, tmp_path / f"{len(pools)}", num_workers)
            pools.append(stack.enter_context(pool)[0])

        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"}, range(2, 4), 3)
        trained_through(job, rows_of(NUM_STEPS), {30: lambda: with_workers(2), 60: lambda: with_workers(4)})
        assert [fault.workers for fault in job.faults][:2] == [2, 3]
        assert {usage.rank for usage in job.usage} == {0, 1, 2}
        job.close()
        channel.close()


def test_the_job_gives_back_what_others_wait_for(tmp_path: Path) -> None:
    with pool_process(0, tmp_path / "pool", 3) as (_, port):
        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"}, range(2, 4), 3)
        others: list[int] = []

        def another() -> None:
            other = begin(channel, address, {}, num_workers=1)
            others.append(value_of(other.drain(other.load(toy_program(31), other), ALL).contents[0]))
            other.close()

        trained_through(job, rows_of(NUM_STEPS), {40: another})
        assert others == [0], "it had its worker in the middle of the other's steps"
        (fault,) = job.faults
        assert fault.workers == 2 and "1 worker(s) are given back to others that wait" in fault.cause
        job.close()
        channel.close()


def test_what_forks_the_workers_stops(tmp_path: Path) -> None:
    with pool_process(0, tmp_path / "pool") as (process, port):
        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"})
        server = forks_workers(process.pid)
        # Its workers go on until it is noticed.
        trained_through(job, rows_of(1500), {40: server.suspend})
        (fault,) = job.faults
        assert "the process that forks workers was silent for 1 s" in fault.cause and not server.is_running()
        job.close()
        channel.close()


def test_workers_that_hang_in_their_first_step(tmp_path: Path) -> None:
    rows = rows_of(NUM_STEPS)
    (first, *_) = values_after(rows)
    with pool_process(0, tmp_path / "pool", 2, None, "--stall", "1.5") as (_, port):
        address, fired = f"127.0.0.1:{port}", tmp_path / "fired"
        fired.mkdir()
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        blocked = ",".join(f"block:{rank}:{first}" for rank in range(2))
        job = begin(channel, address, {"faults": blocked, "fired": str(fired)})
        trained_through(job, rows, {})
        (fault,) = job.faults
        assert "in the first step of a program none of them has used its processor" in fault.cause
        assert len(list(fired.iterdir())) == 2
        job.close()
        channel.close()


def test_too_few_workers_are_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        process, port = stack.enter_context(pool_process(0, tmp_path / "first", 3))

        def smaller() -> None:
            process.process.kill()
            stack.enter_context(pool_process(port, tmp_path / "second", 1))

        address = f"127.0.0.1:{port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        job = begin(channel, address, {"step_s": "0.003"}, range(2, 4), 3, reconnect_s=8.0)
        with pytest.raises(
            PoolUnreachableError, match=r"could not be begun again: The pool has 1 worker\(s\) left, and 2 are"
        ):
            trained_through(job, rows_of(NUM_STEPS), {30: smaller})
        job.close()
        channel.close()
