import threading
from collections.abc import Iterable

import pytest

from nfdt import staleness_bound
from nfdt.staleness_bound import StalenessBound, default_max_delay

LIMIT_S = 20.0


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def _operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of the compiled operations, and that of a machine without a compiler."""
    if request.param == "plain":
        monkeypatch.setattr(staleness_bound, "optional", lambda package: None)


def busy(num_workers: int, max_delay: int | None, workers: Iterable[int] | None = None) -> StalenessBound:
    """Returns a gate of workers that have something to do: all, or these."""
    gate = StalenessBound(num_workers, max_delay)
    for worker in range(num_workers) if workers is None else workers:
        gate.set_idle(worker, False)
    return gate


def test_nobody_waits_without_a_limit() -> None:
    gate = busy(2, None)
    for _ in range(100):
        gate.leave(0)
    assert gate.is_open(0)


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest() -> None:
    gate = busy(3, 1)
    gate.leave(0)
    assert gate.is_open(0)
    gate.leave(0)
    assert not gate.is_open(0)
    gate.leave(1)
    assert not gate.is_open(0)
    gate.leave(2)
    assert gate.is_open(0)


def test_zero_lets_nobody_start_on_a_second_batch_before_all_have_done_one() -> None:
    gate = busy(2, 0)
    gate.leave(1)
    assert not gate.is_open(1)
    assert gate.is_open(0)
    gate.leave(0)
    assert gate.is_open(1)


def test_the_slowest_may_always_go_on() -> None:
    gate, done = busy(2, 0), [0, 0]
    for worker in (0, 1, 1, 0, 0, 1):
        gate.leave(worker)
        done[worker] += 1
        assert gate.is_open(done.index(min(done)))


def test_nobody_waits_for_a_worker_that_has_nothing_to_do() -> None:
    gate = busy(2, 0)
    gate.leave(0)
    assert not gate.is_open(0)
    gate.set_idle(1, True)
    assert gate.is_open(0)
    for _ in range(5):
        gate.leave(0)
    # What it did not do is not asked of it.
    gate.set_idle(1, False)
    assert gate.is_open(0) and gate.is_open(1)
    gate.leave(1)
    assert not gate.is_open(1)


def test_all_are_level_again_after_a_pause() -> None:
    gate = busy(2, 0)
    gate.leave(0)
    for worker in range(2):
        gate.set_idle(worker, True)
    for worker in range(2):
        gate.set_idle(worker, False)
    assert gate.is_open(0) and gate.is_open(1)
    gate.leave(0)
    assert not gate.is_open(0)


def test_who_is_held_goes_on_when_the_slowest_has_made_a_step_or_all_are_let_in() -> None:
    gate = busy(2, 0)
    assert gate.enter(0) == 0.0
    for let_in in (lambda: gate.leave(1), gate.open):
        gate.leave(0)
        entered = threading.Event()
        thread = threading.Thread(target=lambda done=entered: (gate.enter(0), done.set()), daemon=True)
        thread.start()
        assert not gate.is_open(0) and not entered.is_set()
        let_in()
        assert entered.wait(LIMIT_S)


def test_workers_that_share_a_host_do_not_drift_apart_by_default() -> None:
    assert default_max_delay(["", "", ""]) == 2
    # Of several, one may be slow for good: the others go on.
    assert default_max_delay(["/job:fdt/replica:0/task:0", "/job:fdt/replica:0/task:1"]) is None
    gate = busy(2, default_max_delay(["", ""]))
    ahead = 0
    while gate.is_open(0):
        gate.leave(0)
        ahead += 1
    assert ahead == 3, "while the other makes its first step"
