"""The same cases with Keras 2 (tf_keras): N workers, and one asynchronous worker, against plain python."""

import pytest

from tests.fidelity.comparison import assert_equal, compare
from tests.fidelity.conftest import Run
from tests.fidelity.selection import KERAS_2, KERAS_2_ASYNCHRONOUS


@pytest.mark.parametrize(("case", "num_workers", "keras"), [(name, 2, 2) for name in KERAS_2])
def test_case_is_exact(case: str, num_workers: int, keras: int, run: Run) -> None:
    differences = compare(run(case, 0, keras=keras), run(case, num_workers, keras=keras))
    beyond = [str(difference) for difference in differences if not difference.within]
    assert not beyond, "\n".join(beyond)


@pytest.mark.parametrize(
    ("case", "num_workers", "mode", "keras"), [(name, 1, "async", 2) for name in KERAS_2_ASYNCHRONOUS]
)
def test_one_asynchronous_worker_is_plain_keras(case: str, num_workers: int, mode: str, keras: int, run: Run) -> None:
    assert_equal(
        run(case, 0, keras=keras), run(case, num_workers, mode, keras), 5e-7 if case == "batch_normalization" else 0.0
    )
