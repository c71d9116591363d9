"""Threads of their own, but no timing: what a worker does waits for events that the test sets."""

import collections
import threading
import time

import pytest

from nfdt.gate import Gate
from nfdt.team import Team

LIMIT_S = 20.0


def test_every_batch_goes_to_exactly_one_worker() -> None:
    seen: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()

    def step(worker: int, batch: int) -> None:
        with lock:
            seen[batch] += 1

    team: Team[int] = Team(4, step, Gate(4, None))
    for batch in range(1000):
        team.give(batch)
    team.wait()
    assert seen == dict.fromkeys(range(1000), 1)
    assert team.done == 1000
    assert sum(account.steps for account in team.accounts) == 1000
    team.close()


def test_batches_that_are_left_are_no_pause() -> None:
    ended_s: list[float] = []

    def step(worker: int, batch: int) -> None:
        ended_s.append(time.perf_counter())

    team: Team[int] = Team(1, step, Gate(1, None))
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

    def step(worker: int, batch: int) -> None:
        began.set()
        assert release.wait(LIMIT_S)
        finished.append(batch)

    team: Team[int] = Team(1, step, Gate(1, None))
    team.give(0)
    assert began.wait(LIMIT_S)
    assert team.done == 0
    release.set()
    team.wait()
    assert finished == [0]
    team.close()


def test_an_error_of_a_worker_reaches_whoever_gives_or_waits() -> None:
    def step(worker: int, batch: int) -> None:
        raise RuntimeError(f"batch {batch}")

    team: Team[int] = Team(2, step, Gate(2, None))
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

    def step(worker: int, batch: int) -> None:
        assert release.wait(LIMIT_S)

    team: Team[int] = Team(1, step, Gate(1, None))
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
    """With a limit of 0 and two workers, no worker starts its n-th batch before both have done n - 1."""
    counts, lock = [0, 0], threading.Lock()
    leads: list[int] = []

    def step(worker: int, batch: int) -> None:
        with lock:
            leads.append(counts[worker] - min(counts))
            counts[worker] += 1

    team: Team[int] = Team(2, step, Gate(2, 0))
    for batch in range(200):
        team.give(batch)
    team.wait()
    assert sum(counts) == 200
    # A batch counts once it is finished, an instant after `counts` says so: one more than the limit may be seen.
    assert max(leads) <= 1
    team.close()
