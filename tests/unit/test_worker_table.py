"""Workers by place beside workers by name: whatever comes and goes, both say the same."""

import random

import pytest

from fdt.pool.state.entities import Worker, WorkerState
from fdt.pool.state.worker_table import Roster

HOSTS, MODES = ("", "host-1", "host-2"), ("sync", "async")


@pytest.mark.parametrize("seed", range(20))
def test_places_and_names_agree(seed: int) -> None:
    chance, roster = random.Random(seed), Roster()
    for number in range(200):
        known = list(roster.values())
        step = chance.choice(("add", "add", "warm", "leave", "remove")) if known else "add"
        worker = chance.choice(known) if known else Worker("", "", 0.0)
        fewer = step in ("leave", "remove")
        if step == "add":
            roster[f"w{number}"] = Worker(f"w{number}", chance.choice(MODES), 0.0, chance.choice(HOSTS))
        elif step == "warm":
            worker.state = WorkerState.WARM
        elif step == "leave":
            roster.leave(worker, 1.0)
            assert worker.state is WorkerState.LEAVING
        else:
            assert roster.pop(worker.name) is worker
        assert roster.changed() == ([worker.host] if fewer else [])
        for host in HOSTS:
            for mode in MODES:
                there = [each for each in roster.values() if (each.host, each.mode) == (host, mode)]
                assert roster.on(host, mode) == there
                assert roster.warm(host, mode) == [each.name for each in there if each.state is WorkerState.WARM]


def test_a_host_without_workers_is_told_of_once() -> None:
    roster = Roster()
    roster.come("host-1")
    roster.come("host-1")
    assert roster.changed() == ["host-1"] and roster.changed() == []
