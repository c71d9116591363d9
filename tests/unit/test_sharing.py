"""Workers that share places: what must hold however the parts are drawn."""

import pytest

from fdt.predicting.sharing import Phase, shared


def test_alone_a_step_takes_the_sum_of_its_phases() -> None:
    step = [Phase("link", 0.5, uneven=True), Phase(None, 0.25), Phase("cores", 0.25)]
    assert shared(step, 1, {}) == pytest.approx(1.0)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_place_that_all_need_all_the_time_is_never_idle(uneven: bool) -> None:
    # Who is under way when counting begins and ends makes a little difference.
    assert shared([Phase("link", 1.0, uneven)], 5, {}) == pytest.approx(5.0, rel=0.01)


def test_as_many_as_there_is_room_for_are_in_nobodys_way() -> None:
    assert shared([Phase("cores", 1.0)], 4, {"cores": 4.0}) == pytest.approx(1.0)
    assert shared([Phase("cores", 1.0)], 4, {"cores": 2.0}) == pytest.approx(2.0)
    assert shared([Phase("cores", 1.0)], 1, {"cores": 0.5}) == pytest.approx(2.0)


def test_with_even_parts_workers_stay_in_step_and_with_uneven_ones_they_do_not() -> None:
    def step(uneven: bool) -> list[Phase]:
        return [Phase("out", 1.0, uneven), Phase("in", 1.0, uneven)]

    assert shared(step(False), 4, {}) == pytest.approx(8.0)
    assert 4.0 <= shared(step(True), 4, {}) < 5.0


def test_the_same_question_has_the_same_answer() -> None:
    step = [Phase("out", 1.0, uneven=True), Phase("in", 0.7, uneven=True)]
    assert shared(step, 3, {}) == shared(step, 3, {})
