"""Workers by place beside workers by name: whatever comes and goes, both say the same."""

import random

import pytest

from fdt.pool.state.entities import Worker, WorkerState
from fdt.pool.state.worker_table import WorkerTable

HOSTS, MODES = ("", "host-1", "host-2"), ("sync", "async")


@pytest.mark.parametrize("seed", range(20))
def test_places_and_names_agree(seed: int) -> None:
    chance, worker_table = random.Random(seed), WorkerTable()
    for number in range(200):
        known = list(worker_table.values())
        step = chance.choice(("add", "add", "warm", "leave", "remove")) if known else "add"
        worker = chance.choice(known) if known else Worker("", "", 0.0)
        fewer = step in ("leave", "remove")
        if step == "add":
            worker_table[f"w{number}"] = Worker(f"w{number}", chance.choice(MODES), 0.0, chance.choice(HOSTS))
        elif step == "warm":
            worker.state = WorkerState.WARM
        elif step == "leave":
            worker_table.leave(worker, 1.0)
            assert worker.state is WorkerState.LEAVING
        else:
            assert worker_table.pop(worker.name) is worker
        assert worker_table.changed() == ([worker.host] if fewer else [])
        for host in HOSTS:
            for mode in MODES:
                there = [each for each in worker_table.values() if (each.host, each.mode) == (host, mode)]
                assert worker_table.on(host, mode) == there
                assert worker_table.warm(host, mode) == [each.name for each in there if each.state is WorkerState.WARM]


def test_a_host_without_workers_is_told_of_once() -> None:
    worker_table = WorkerTable()
    worker_table.come("host-1")
    worker_table.come("host-1")
    assert worker_table.changed() == ["host-1"] and worker_table.changed() == []
