"""How gradients are cut into buckets that are exchanged while others are computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdt.division.buckets import buckets

_KB, _MB = 1 << 10, 1 << 20
_SIZES = st.lists(st.integers(0, 40 * _MB), min_size=1, max_size=40)


@given(_SIZES, st.integers(1, 64 * _MB))
def test_each_gradient_is_in_one_bucket_and_the_order_is_kept(sizes: list[int], bucket_bytes: int) -> None:
    found = buckets(sizes, bucket_bytes)
    assert [place for bucket in found for place in range(len(sizes))[bucket]] == list(range(len(sizes)))
    assert all(sizes[bucket] for bucket in found)


@given(_SIZES, st.integers(1, 64 * _MB))
def test_a_bucket_exceeds_its_size_only_by_a_large_gradient(sizes: list[int], bucket_bytes: int) -> None:
    for bucket in buckets(sizes, bucket_bytes):
        *others, last = sizes[bucket]
        assert sum(others) + last <= bucket_bytes or sum(others) <= bucket_bytes / 4


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param([_MB // 10] * 100, [10, 20, 40, 28, 2], id="the last bucket, which nothing hides, is small"),
        pytest.param([_MB] * 10, [1, 2, 4, 2, 1], id="so are the first ones"),
        pytest.param([4 * _KB, 30 * _MB] * 3, [2, 2, 2], id="a bias goes with its weights"),
        pytest.param([3 * _MB] * 3, [1, 1, 1], id="a full bucket is not made to wait"),
        pytest.param([4 * _KB] * 5, [5], id="small gradients are one message"),
        pytest.param([30 * _MB, 4 * _KB], [1, 1], id="what comes after a large gradient"),
    ],
)
def test_how_many_gradients_a_bucket_has(sizes: list[int], expected: list[int]) -> None:
    assert [bucket.stop - bucket.start for bucket in buckets(sizes, 4 * _MB)] == expected


def test_gradients_without_a_size_of_buckets_are_exchanged_together() -> None:
    assert buckets([_MB] * 10, None) == [slice(0, 10)]
