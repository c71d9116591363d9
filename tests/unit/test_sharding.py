"""Parameters are spread evenly, and cut only where that is worth it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdt.base.sharding import deal, fill, is_even, loads_of

SIZES = st.lists(st.integers(1, 1 << 24), min_size=1, max_size=12)


@given(SIZES, st.integers(1, 6))
def test_every_tensor_is_dealt_once(sizes: list[int], servers: int) -> None:
    parts = deal(sizes, servers)
    assert len(parts) == servers and sorted(i for part in parts for i in part) == list(range(len(sizes)))


@given(st.lists(st.integers(0, 1 << 24), min_size=1, max_size=8), st.integers(0, 1 << 26))
def test_what_can_be_cut_fills_the_emptiest_first(loads: list[int], amount: int) -> None:
    given_out = fill(loads, amount)
    assert sum(given_out) == pytest.approx(amount)
    filled = [load + more for load, more in zip(loads, given_out, strict=True)]
    # Whoever was given something is as full as any other that was, and nobody who was not is emptier.
    level = max((all_of_it for all_of_it, more in zip(filled, given_out, strict=True) if more > 0), default=0)
    assert all(all_of_it >= level - 1e-6 * (1 + level) for all_of_it in filled)


def test_small_differences_are_left() -> None:
    assert is_even([105 << 20, 95 << 20]) and not is_even([12 << 20, 8 << 20])
    # Little parameters, however uneven.
    assert is_even([60 << 10, 0, 0, 0])
    assert loads_of([3, 2, 1], [[0], [1, 2]]) == [3, 3]
