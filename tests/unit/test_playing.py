"""Workers that need places to themselves: examples worked out by hand."""

import pytest

from fdt.predicting.playing import Action, played


def action(seconds: float, *places: object) -> Action:
    return Action(frozenset(places), seconds)


def test_one_worker_does_one_thing_after_the_other() -> None:
    assert played([[action(1.0, "a"), action(2.0, "b")]], {}) == pytest.approx(3.0)


def test_workers_that_share_nothing_do_not_wait() -> None:
    assert played([[action(2.0, 0)], [action(2.0, 1)], [action(2.0, 2)]], {}) == pytest.approx(2.0)


def test_a_place_that_all_need_is_the_limit() -> None:
    worker = [action(1.0, "link"), action(0.5)]
    assert played([worker] * 4, {}) == pytest.approx(4.0)
    assert played([worker] * 4, {"link": 2}) == pytest.approx(2.0)
    assert played([worker] * 4, {"link": 4}) == pytest.approx(1.5)


def test_who_needs_two_places_waits_for_both() -> None:
    """Of three pairs of three hosts, no two can be at work at once."""
    pairs = [(0, 1), (1, 2), (2, 0)]
    assert played([[action(1.0, *pair)] for pair in pairs], {}) == pytest.approx(3.0)
    assert played([[action(1.0, 0, 1)], [action(1.0, 2, 3)]], {}) == pytest.approx(1.0)


def test_workers_fall_into_turn() -> None:
    """Out and back by two links: one is out while the other comes back."""
    worker = [action(1.0, "out"), action(1.0, "back")]
    assert played([worker] * 2, {}) == pytest.approx(2.0)
