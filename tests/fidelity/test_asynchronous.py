"""What can be said of asynchronous training against plain python: one worker is equal to it, several count as it does."""

import numpy as np
import pytest

from tests.fidelity.comparison import assert_equal
from tests.fidelity.conftest import Run
from tests.fidelity.selection import ASYNCHRONOUS, COUNTED


@pytest.mark.parametrize(("case", "num_workers", "mode"), [(name, 1, "async") for name in ASYNCHRONOUS])
def test_one_asynchronous_worker_is_plain_keras(case: str, num_workers: int, mode: str, run: Run) -> None:
    """It meets no delay, so nothing but the place of the computation differs: bit for bit."""
    # TensorFlow takes another kernel for BatchNormalization in a graph of its own, and joins the two losses of the GAN's
    # step in another order; of an eager step plain python runs each operation by itself. Everything else is equal.
    is_other = case in ("batch_normalization", "loop_gan") or case.startswith("eager_")
    limit = 5e-7 if is_other else 0.0
    assert_equal(run(case, 0), run(case, num_workers, mode), limit)


@pytest.mark.parametrize(("case", "num_workers", "mode"), [(name, 2, "async") for name in COUNTED])
def test_two_asynchronous_workers_count_as_one(case: str, num_workers: int, mode: str, run: Run) -> None:
    """Every step is one update and every row is used once; how well it learns depends on which gradient came first."""
    plain, distributed = run(case, 0), run(case, num_workers, mode)
    assert sorted(plain) == sorted(distributed)
    counts = [name for name in plain if name.startswith("count/")]
    assert counts
    for name in counts:
        assert np.array_equal(plain[name], distributed[name]), name
    assert all(np.all(np.isfinite(value)) for value in distributed.values() if value.dtype.kind == "f")
