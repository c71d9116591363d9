"""Workers that share places: what must hold however the parts are drawn."""

import random
from collections.abc import Hashable

import pytest

from fdt.forecast.sharing import Flow, Phase, Step, fair_rates, shared


def alone(seconds: float, *places: Hashable, uneven: bool = False) -> Phase:
    return Phase((Flow(places, seconds),), uneven)


def step(*phases: Phase) -> Step:
    return [phases]


def test_alone_a_step_takes_the_sum_of_its_phases() -> None:
    of_one = step(alone(0.5, "link", uneven=True), alone(0.25), alone(0.25, "cores"))
    assert shared([of_one], {}) == pytest.approx(1.0)


def test_a_phase_takes_as_long_as_its_longest_part() -> None:
    parts = Phase((Flow(("left",), 0.5), Flow(("right",), 1.0), Flow(("nobody",), 0.0)))
    assert shared([step(parts, alone(0.5))], {}) == pytest.approx(1.5)


def test_what_follows_a_part_does_not_wait_for_the_others() -> None:
    after, nothing = Flow(("back",), 1.0), Flow((), 0.0)
    parts = Phase((Flow(("left",), 0.5, after), Flow(("right",), 1.0, nothing), Flow(("nobody",), 0.0, after)))
    # On the way back: at first the last one's 1.0, of which half is left when the first one's comes.
    assert shared([step(parts, alone(0.5))], {}) == pytest.approx(2.5)


def test_chains_begin_together_and_the_step_ends_with_the_last_of_them() -> None:
    ahead = [[alone(1.0, "in")], [alone(0.5, "cores"), alone(1.0, "out")]]
    assert shared([ahead], {}) == pytest.approx(1.5)
    # What both want at once takes as long as all of it.
    assert shared([[[alone(1.0, "link")], [alone(1.0, "link")]]], {}) == pytest.approx(2.0)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_place_that_all_need_all_the_time_is_never_idle(uneven: bool) -> None:
    # Who is under way when counting begins and ends makes a little difference.
    assert shared([step(alone(1.0, "link", uneven=uneven))] * 5, {}) == pytest.approx(5.0, rel=0.02)


def test_as_many_as_there_is_room_for_are_in_nobodys_way() -> None:
    assert shared([step(alone(1.0, "cores"))] * 4, {"cores": 4.0}) == pytest.approx(1.0)
    assert shared([step(alone(1.0, "cores"))] * 4, {"cores": 2.0}) == pytest.approx(2.0)
    assert shared([step(alone(1.0, "cores"))], {"cores": 0.5}) == pytest.approx(2.0)


def test_with_even_parts_workers_stay_in_step_and_with_uneven_ones_they_do_not() -> None:
    def both(uneven: bool) -> Step:
        return step(alone(1.0, "out", uneven=uneven), alone(1.0, "in", uneven=uneven))

    assert shared([both(False)] * 4, {}) == pytest.approx(8.0)
    assert 4.0 <= shared([both(True)] * 4, {}) < 5.0


def test_the_same_question_has_the_same_answer() -> None:
    of_one = step(alone(1.0, "out", uneven=True), alone(0.7, "in", uneven=True))
    assert shared([of_one] * 3, {}) == shared([of_one] * 3, {})


@pytest.mark.parametrize("seed", range(30))
def test_rates_are_fair(seed: int) -> None:
    """No place is overfull; who is slower than alone has a full place where nobody has more for its weight."""
    chance = random.Random(seed)
    capacity = {place: chance.choice([0.5, 1.0, 1.0, 2.0]) for place in range(6)}
    flows = [
        (tuple(chance.sample(range(6), chance.randrange(4))), chance.choice([1.0, chance.lognormvariate(0, 1.5)]))
        for _ in range(chance.randrange(1, 15))
    ]
    rates = fair_rates(flows, capacity)
    levels: dict[Hashable, list[tuple[float, float]]] = {place: [] for place in capacity}
    for (places, weight), rate in zip(flows, rates, strict=True):
        for place in places:
            levels[place].append((rate, rate / weight))
    full = {place for place in capacity if sum(rate for rate, _ in levels[place]) > capacity[place] - 1e-9}
    assert all(sum(rate for rate, _ in levels[place]) <= capacity[place] + 1e-9 for place in capacity)
    for (places, weight), rate in zip(flows, rates, strict=True):
        most = [max(level for _, level in levels[place]) for place in full.intersection(places)]
        assert rate == pytest.approx(1.0) or any(rate / weight >= level - 1e-9 for level in most)


def test_what_one_place_holds_up_others_have() -> None:
    """Three flows: two through the narrow place; of the wide one the third has all that they leave."""
    flows: list[tuple[tuple[Hashable, ...], float]] = [(("narrow", "wide"), 1.0), (("narrow",), 1.0), (("wide",), 1.0)]
    assert fair_rates(flows, {"narrow": 0.5}) == pytest.approx([0.25, 0.25, 0.75])


def test_workers_of_hosts_with_a_server_each() -> None:
    """All pull from all and push to all: never faster than the links, and a step ahead is no slower."""
    hosts, seconds = 3, 1.0

    def of_host(own: int, ahead: bool) -> Step:
        others = [host for host in range(hosts) if host != own]
        pulled = Phase(tuple(Flow((("out", h), ("in", own)), seconds) for h in others), uneven=True)
        pushed = Phase(tuple(Flow((("out", own), ("in", h)), seconds) for h in others), uneven=True)
        return [[pulled], [alone(0.2), pushed]] if ahead else step(pulled, alone(0.2), pushed)

    needed = 2 * (hosts - 1) * seconds
    in_turn, ahead = (shared([of_host(own, ahead) for own in range(hosts)], {}) for ahead in (False, True))
    assert needed <= ahead <= in_turn < 2 * needed
