"""How gradients are cut into buckets that are exchanged while others are computed."""

from hypothesis import given
from hypothesis import strategies as st

from fdt.division.buckets import buckets

_MB = 1 << 20
_SIZES = st.lists(st.integers(0, 40 * _MB), min_size=1, max_size=40)


@given(_SIZES, st.integers(1, 64 * _MB))
def test_each_gradient_is_in_one_bucket_and_the_order_is_kept(sizes: list[int], most_bytes: int) -> None:
    found = buckets(sizes, most_bytes)
    assert [place for bucket in found for place in range(len(sizes))[bucket]] == list(range(len(sizes)))
    assert all(sizes[bucket] for bucket in found)


@given(_SIZES, st.integers(1, 64 * _MB))
def test_a_bucket_is_larger_than_asked_for_only_if_one_gradient_is(sizes: list[int], most_bytes: int) -> None:
    for bucket in buckets(sizes, most_bytes):
        each = sizes[bucket]
        assert sum(each) <= most_bytes or sum(1 for size in each if size) == 1


def test_the_last_bucket_which_nothing_hides_is_small() -> None:
    assert buckets([_MB // 10] * 100, 4 * _MB)[-1] == slice(98, 100)
    assert buckets([_MB] * 10, 4 * _MB) == [slice(0, 1), slice(1, 5), slice(5, 9), slice(9, 10)]


def test_gradients_without_a_bound_are_exchanged_together() -> None:
    assert buckets([_MB] * 10, None) == [slice(0, 10)]
