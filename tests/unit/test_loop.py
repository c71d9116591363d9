"""How a batch is divided, what a worker does to seeds of its own, how values are compared."""

import numpy as np
import pytest

from fdt.program.engine import worker_seed
from fdt.program.layout import Divided, shares
from hfdt.runtime import fingerprint


@pytest.mark.parametrize("num_ranks", range(1, 9))
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 64])
def test_parts_cover_a_batch_once_in_rank_order(batch_size: int, num_ranks: int) -> None:
    sizes = list(shares(batch_size, num_ranks))
    parts = [span for rank in range(num_ranks) for span in Divided(0, tuple(sizes)).spans(rank)]
    assert [row for start, size in parts for row in range(start, start + size)] == list(range(batch_size))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "rank 0 is never idle"


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.int32])
def test_workers_draw_from_seeds_apart_and_keep_the_counter(dtype: type) -> None:
    state = np.array([1337, 5], dtype)
    states = [worker_seed(state, rank) for rank in range(1, 64)]
    assert len({int(s[0]) for s in [state, *states]}) == 64
    assert {int(s[1]) for s in states} == {5}
    assert all(s.dtype == dtype for s in states)


@pytest.mark.parametrize("size", [0, 1, 3, 8, 1001])
def test_fingerprint_sees_one_changed_bit(size: int) -> None:
    value = np.random.default_rng(0).random(size, np.float32)
    assert np.array_equal(fingerprint(value), fingerprint(value.copy()))
    for place in {0, size // 2, size - 1} if size else ():
        changed = value.copy()
        changed.view(np.uint32)[place] ^= 1
        assert not np.array_equal(fingerprint(value), fingerprint(changed))
