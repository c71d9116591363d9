"""The progress bar's numbers: how old they are when it shows them, and that nobody waits for them."""

import pytest

from fdt.capture.keras.refreshing import Refreshing

_AHEAD_S = 0.5


class _Pool:
    """Makes the steps that it is sent, one after the other; the client is as far ahead as it may be."""

    def __init__(self, step_s: float):
        self.step_s = step_s
        self.now_s, self.free_s, self.waited = 0.0, 0.0, 0
        # Of the numbers that are shown: since when they are.
        self.shown_s = 0.0

    def send(self, ahead: int) -> None:
        self.now_s = max(self.now_s + 0.0005, self.free_s - ahead * self.step_s)
        self.free_s = max(self.free_s, self.now_s) + self.step_s

    def request(self) -> "_Answer":
        return _Answer(self, self.free_s)


class _Answer:
    def __init__(self, pool: _Pool, comes_s: float):
        self.pool, self.comes_s = pool, comes_s

    def ready(self) -> bool:
        return self.pool.now_s >= self.comes_s

    def result(self) -> None:
        self.pool.waited += not self.ready()
        self.pool.shown_s = self.comes_s


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.07, 0.3])
def test_numbers_are_never_half_a_second_old_and_nobody_waits_for_them(step_s: float) -> None:
    pool, refreshing, ahead = _Pool(step_s), Refreshing(), max(4, int(_AHEAD_S / step_s))
    oldest_s, asked = 0.0, 0

    def request() -> _Answer:
        nonlocal asked
        asked += 1
        return pool.request()

    num_steps = int(20 / step_s)
    for _ in range(num_steps):
        pool.send(ahead)
        for drain in refreshing.arrived():
            drain.result()
        refreshing.sent(1, ahead, request)
        oldest_s = max(oldest_s, pool.now_s - pool.shown_s)
    # A step that takes longer cannot be told of before it has ended.
    assert 0 < oldest_s <= max(_AHEAD_S, 2 * step_s)
    assert pool.waited == 0
    assert asked <= min(num_steps, 20 / (0.25 * _AHEAD_S)), "not oftener than is of use"
    refreshing.settle()
    assert not refreshing.arrived()


def test_settled_numbers_are_waited_for() -> None:
    pool, refreshing = _Pool(0.1), Refreshing()
    pool.send(8)
    refreshing.sent(8, 8, pool.request)
    assert not refreshing.arrived()
    refreshing.settle()
    assert pool.waited == 1 and not refreshing.arrived()
