"""Threads of their own, but no timing: what a worker does waits for events that the test sets."""

import collections
import threading
import time
from collections.abc import Sequence

import pytest

from nfdt.staleness_bound import StalenessBound
from nfdt.worker_threads import WorkerThreads

LIMIT_S = 20.0


def test_every_batch_goes_to_exactly_one_worker() -> None:
    seen: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()

    def step(worker: int, batches: Sequence[int]) -> float:
        with lock:
            seen.update(batches)
        return 0.0

    team: WorkerThreads[int] = WorkerThreads(4, step, StalenessBound(4, None))
    for batch in range(1000):
        team.give(batch)
    team.wait()
    assert seen == dict.fromkeys(range(1000), 1)
    assert team.done == 1000
    assert sum(account.steps for account in team.accounts) == 1000
    team.close()


def test_batches_that_are_left_are_no_pause() -> None:
    ended_s: list[float] = []

    def step(worker: int, batches: Sequence[int]) -> float:
        ended_s.append(time.perf_counter())
        return 0.0

    team: WorkerThreads[int] = WorkerThreads(1, step, StalenessBound(1, None))
    for batch in range(4):
        team.give(batch)
    # Who had begun the last one had ended all others.
    began_s = team.wait()
    assert ended_s[-2] <= began_s <= time.perf_counter()
    assert len(ended_s) == 4
    team.close()


def test_waiting_ends_only_when_the_last_batch_is_done() -> None:
    release, began = threading.Event(), threading.Event()
    finished: list[int] = []

    def step(worker: int, batches: Sequence[int]) -> float:
        began.set()
        assert release.wait(LIMIT_S)
        finished.extend(batches)
        return 0.0

    team: WorkerThreads[int] = WorkerThreads(1, step, StalenessBound(1, None))
    team.give(0)
    assert began.wait(LIMIT_S)
    assert team.done == 0
    release.set()
    team.wait()
    assert finished == [0]
    team.close()


def test_an_error_of_a_worker_reaches_whoever_gives_or_waits() -> None:
    def step(worker: int, batches: Sequence[int]) -> float:
        raise RuntimeError(f"batch {batches[0]}")

    team: WorkerThreads[int] = WorkerThreads(2, step, StalenessBound(2, None))
    team.give(7)
    with pytest.raises(RuntimeError, match="batch 7"):
        team.wait()
    with pytest.raises(RuntimeError, match="batch 7"):
        team.give(8)
    with pytest.raises(RuntimeError, match="batch 7"):
        _ = team.done
    team.close()


def test_giving_waits_while_many_batches_are_there_already() -> None:
    release = threading.Event()

    def step(worker: int, batches: Sequence[int]) -> float:
        assert release.wait(LIMIT_S)
        return 0.0

    team: WorkerThreads[int] = WorkerThreads(1, step, StalenessBound(1, None))
    given = threading.Semaphore(0)

    def give() -> None:
        for batch in range(50):
            team.give(batch)
            given.release()

    thread = threading.Thread(target=give, daemon=True)
    thread.start()
    # One is being worked on and four wait: nobody gets further before the first is done.
    for _ in range(5):
        assert given.acquire(timeout=LIMIT_S)
    assert thread.is_alive()
    release.set()
    thread.join(LIMIT_S)
    team.wait()
    assert team.done == 50
    team.close()


def test_a_limit_on_the_lead_makes_workers_take_turns() -> None:
    """With a limit of 0 and two workers, the other one makes one step at most while a worker makes one."""
    counts, lock = [0, 0], threading.Lock()
    meanwhile: list[int] = []
    gate = StalenessBound(2, 0)

    def step(worker: int, batches: Sequence[int]) -> float:
        held_s = gate.enter(worker)
        with lock:
            before = counts[1 - worker]
        for _ in range(1000):
            pass
        with lock:
            meanwhile.append(counts[1 - worker] - before)
            counts[worker] += 1
        gate.leave(worker)
        return held_s

    team: WorkerThreads[int] = WorkerThreads(2, step, gate)
    for batch in range(200):
        team.give(batch)
    team.wait()
    assert sum(counts) == 200
    assert max(meanwhile) <= 1
    team.close()


def test_a_worker_takes_as_many_as_are_chosen_in_their_order() -> None:
    taken: list[list[int]] = []
    began, release = threading.Event(), threading.Event()

    def step(worker: int, batches: Sequence[int]) -> float:
        taken.append(list(batches))
        began.set()
        assert release.wait(LIMIT_S)
        return 0.0

    team: WorkerThreads[int] = WorkerThreads(
        1, step, StalenessBound(1, None), lambda worker, waiting: min(3, len(waiting)), most=3
    )
    team.give(0)
    assert began.wait(LIMIT_S)
    for batch in range(1, 6):
        team.give(batch)
    release.set()
    team.wait()
    assert taken == [[0], [1, 2, 3], [4, 5]]
    assert team.done == 6 and team.accounts[0].steps == 6
    team.close()


def test_nobody_takes_a_second_batch_while_a_worker_has_none() -> None:
    began: list[int] = []
    changed, may_end = threading.Condition(), threading.Semaphore(0)

    def step(worker: int, batches: Sequence[int]) -> float:
        with changed:
            began.append(worker)
            changed.notify_all()
        assert may_end.acquire(timeout=LIMIT_S)
        return 0.0

    def wait_for(number: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(began) == number, LIMIT_S)

    team: WorkerThreads[int] = WorkerThreads(3, step, StalenessBound(3, None), calls=2)
    for batch in range(3):
        team.give(batch)
        wait_for(batch + 1)
    assert sorted(began) == [0, 1, 2]
    for batch in range(3, 8):
        team.give(batch)
    wait_for(6)
    assert sorted(began) == [0, 0, 1, 1, 2, 2]
    for _ in range(8):
        may_end.release()
    team.wait()
    assert team.done == 8 and sum(account.steps for account in team.accounts) == 8
    team.close()


def test_seconds_that_a_worker_was_held_are_no_work() -> None:
    team: WorkerThreads[int] = WorkerThreads(1, lambda worker, batches: 1000.0, StalenessBound(1, None))
    team.give(0)
    team.wait()
    (account,) = team.accounts
    assert account.held_s == 1000.0 <= account.wait_s
    team.close()
