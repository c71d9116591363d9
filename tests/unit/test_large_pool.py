"""What an event costs in a large pool: as many instructions of Python as in a small one."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from fdt.pool.state.entities import WorkerState
from fdt.pool.state.events import Event, HostJoined, Tick, WorkerExited, WorkerJoined, WorkerReady
from fdt.pool.state.pool_state import PoolState
from tests.unit.test_jobs import MODES, TIMING, Pool

SLOTS = 8


def pool_of(hosts: int) -> Pool:
    """All workers of the first host are ready, those of the others start."""
    pool = Pool(0)
    pool(*(HostJoined(1.0, f"host-{number}", f"node{number}", SLOTS) for number in range(hosts)))
    pool(*(WorkerReady(2.0, name) for name in list(pool.state.workers)[:SLOTS]))
    return pool


def opcodes(do: Callable[[], object]) -> int:
    """Returns how many instructions of Python are run."""
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return counted


def cost(pool: Pool, event: Event) -> int:
    def do() -> None:
        pool(event)
        pool.state.next_deadline_s()

    return opcodes(do)


def a_worker_is_ready(pool: Pool) -> Event:
    return WorkerReady(4.0, pool.state.workers.starting()[0].name)


def a_worker_joins_its_job(pool: Pool) -> Event:
    pool.submit("a", SLOTS)
    return WorkerJoined(4.0, pool.state.jobs["a"].workers[0])


def a_worker_ends(pool: Pool) -> Event:
    return WorkerExited(4.0, next(iter(pool.state.workers)), 0)


def a_worker_is_ready_while_a_job_waits_for_others_to_end(pool: Pool) -> Event:
    pool.submit("a", SLOTS)
    pool.submit("b", pool.state.hosts.num_workers)
    return a_worker_is_ready(pool)


def nothing_is_due(_: Pool) -> Event:
    return Tick(4.0)


@pytest.mark.parametrize(
    "event_of",
    [
        a_worker_is_ready,
        a_worker_joins_its_job,
        a_worker_ends,
        a_worker_is_ready_while_a_job_waits_for_others_to_end,
        nothing_is_due,
    ],
    ids=lambda given: given.__name__,
)
def test_an_event_costs_as_much_in_a_large_pool(event_of: Callable[[Pool], Event]) -> None:
    costs = [cost(pool, event_of(pool)) for pool in (pool_of(4), pool_of(40))]
    assert costs[0] > 50 and costs[1] == costs[0]


def test_jobs_that_have_ended_cost_nothing() -> None:
    costs: list[int] = []
    for ended in (1, 50):
        pool = pool_of(2)
        for number in range(ended):
            pool.submit(f"job-{number}", SLOTS * 3)
        assert all(job.state.ended for job in pool.state.jobs.values())
        costs.append(cost(pool, a_worker_is_ready(pool)))
    assert costs[0] == costs[1]


def test_workers_that_do_not_start_are_noticed_in_their_order() -> None:
    state = PoolState(3, MODES, TIMING)
    state.handle(Tick(0.0))
    names: Sequence[str] = list(state.workers)
    state.handle(WorkerReady(1.0, names[0]))
    assert [worker.name for worker in state.workers.starting()] == list(names[1:])
    proof_s = 1.0 + 2 * TIMING.heartbeat_limit_s
    assert state.next_deadline_s() == proof_s, "until the first has waited long enough"
    state.handle(Tick(proof_s))
    assert state.next_deadline_s() == TIMING.warm_s
    state.handle(Tick(TIMING.warm_s))
    assert [state.workers[name].state for name in names[1:]] == [WorkerState.LEAVING] * 2
    assert state.next_deadline_s() == 2 * TIMING.warm_s, "of those that were started instead"
