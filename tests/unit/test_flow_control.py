"""How far a client is ahead of the workers: a clock that is set by hand."""

import pytest

from fdt.client.flow_control import FlowControl


class _Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("fdt.client.flow_control.time.monotonic", lambda: self.now_s)


def trained(clock: _Clock, flow: FlowControl, num_workers: int, step_s: float, rounds: int) -> None:
    """Lets as many workers make steps as have one, round by round."""
    done = 0
    for _ in range(rounds):
        flow.sent = done + flow.limit
        clock.now_s += step_s
        done += min(num_workers, flow.limit)
        flow.observe(done)


@pytest.mark.parametrize("step_s", [0.01, 0.3, 2.0, 60.0])
def test_however_long_steps_take_each_worker_has_one_and_the_next(
    monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    clock = _Clock(monkeypatch)
    flow = FlowControl(0.5, at_once=8)
    for _ in range(20):
        trained(clock, flow, 8, step_s, 1)
        assert flow.limit >= 16


def test_short_steps_are_sent_as_many_as_take_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    flow = FlowControl(0.5)
    trained(clock, flow, 1, 0.001, 5000)
    assert 400 <= flow.limit <= 600 and flow.chunk == flow.limit // 4


def test_one_step_at_a_time_is_four_ahead_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    flow = FlowControl(0.5)
    trained(clock, flow, 1, 10.0, 20)
    assert flow.limit == 4
