"""What a step does in Python that a traced step does not do again is seen, and undone."""

import collections
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fdt.capture import places, watching
from fdt.capture.watching import Watch

_OWN = np.random.default_rng(3)


def _numbers() -> Iterator[int]:
    yield from range(100)


_BEGUN, _ZIPPED = _numbers(), iter(zip(range(100), range(100), strict=True))
next(_BEGUN)


def _numpy() -> Any:
    return np.random.normal()


def _random() -> Any:
    return random.randint(0, 1 << 30) + random.random()


def _own() -> Any:
    return _OWN.normal(size=3).sum()


def _begins_a_generator() -> Any:
    return sum(2 * number for number in _numbers())


def _takes_from_a_generator() -> Any:
    for number in _BEGUN:
        return number
    return None


def _takes_from_an_iterator() -> Any:
    return next(_ZIPPED)


@pytest.fixture(autouse=True)
def _this_file_is_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (places, watching):
        monkeypatch.setattr(module, "is_own_file", lambda file: file == __file__)


def _watched(function: Callable[[], Any]) -> Watch:
    watch = Watch()
    with watch.watching():
        function()
    return watch


@pytest.mark.parametrize("function", [_numpy, _random, _own])
def test_numbers_that_are_drawn_are_an_effect_and_are_drawn_again(function: Callable[[], Any]) -> None:
    watch = _watched(function)
    effects = [*watch.effects, watch.take_back_draws() or ""]
    assert [effect for effect in effects if "draws random numbers in Python" in effect]
    assert watch.taken is None
    before = random.getstate(), np.random.get_state()[2], _OWN.bit_generator.state
    _watched(function).take_back_draws()
    assert (random.getstate(), np.random.get_state()[2], _OWN.bit_generator.state) == before


@pytest.mark.parametrize("function", [_takes_from_a_generator, _takes_from_an_iterator])
def test_what_is_taken_from_an_older_iterator_is_an_effect_that_stays(function: Callable[[], Any]) -> None:
    watch = _watched(function)
    assert watch.taken is not None
    assert watch.effects == [watch.taken]


def test_a_generator_of_the_steps_own_is_none() -> None:
    assert _watched(_begins_a_generator).effects == []


class _Holder:
    def __init__(self) -> None:
        self.listed: list[Any] = [[1.0], 2.0]
        self.named = {"a": 1.0}
        self.last: Any = collections.deque([1.0], maxlen=1)
        self.seen, self.array, self.number = {1}, np.zeros(2), 0
        self.inner: Any = None

    def lists(self) -> None:
        self.listed[0][0] = 3.0

    def names(self) -> None:
        self.named["a"] = 2.0

    def lasts(self) -> None:
        self.last.append(2.0)

    def sees(self) -> None:
        self.seen.add(2)

    def fills(self) -> None:
        self.array[0] += 1

    def counts(self) -> None:
        self.number += 1

    def deep(self) -> None:
        self.inner.listed[1] = 3.0

    def makes(self) -> None:
        made = _Holder()
        made.counts()
        made.names()


def _nonlocal() -> Callable[[], None]:
    count = 0

    def counts() -> None:
        nonlocal count
        count += 1

    return counts


@pytest.mark.parametrize("name", ["lists", "names", "lasts", "sees", "fills", "counts", "deep"])
def test_what_is_changed_in_place_is_an_effect_and_is_undone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "is_of_script", lambda kind: kind is _Holder)
    holder, before = _Holder(), _Holder()
    holder.inner, before.inner = _Holder(), _Holder()
    watch = _watched(getattr(holder, name))
    assert len(watch.effects) == 1
    assert "it changes _Holder." in watch.effects[0]
    assert repr([vars(holder.inner), holder.listed, holder.named, holder.last]) == repr(
        [vars(before.inner), before.listed, before.named, before.last]
    )
    assert (holder.seen, holder.array.tolist(), holder.number) == ({1}, [0.0, 0.0], 0)


def test_objects_that_a_step_makes_are_its_own() -> None:
    assert _watched(_Holder().makes).effects == []


def test_a_name_of_an_enclosing_function_is_seen() -> None:
    assert _watched(_nonlocal()).effects == ["it changes count"]


def test_a_name_of_a_function_that_the_step_itself_calls_is_its_own() -> None:
    before = _nonlocal()

    def step() -> None:
        made = _nonlocal()
        made()
        [made() for _ in range(2)]

    def both() -> None:
        before()
        step()

    assert _watched(step).effects == []
    assert _watched(both).effects == ["it changes count"]
    assert before.__closure__ and before.__closure__[0].cell_contents == 0


def test_numbers_that_another_thread_draws_are_not_taken_back_by_themselves() -> None:
    def by_another() -> None:
        thread = threading.Thread(target=_numpy)
        thread.start()
        thread.join()

    np.random.seed(1)
    first, second = np.random.normal(), np.random.normal()
    np.random.seed(1)
    watch = _watched(by_another)
    assert len(watch.drawn) == 1
    assert not watch.effects
    assert np.random.normal() == second
    watch.take_back_draws()
    assert np.random.normal() == first
