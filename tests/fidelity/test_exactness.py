"""N workers give what plain python gives, up to the order in which floats are summed.

Every case starts from the same seed, trains with `shuffle=True` unless it says otherwise, and is compared array by
array: History, weights, optimizer variables, iterations, and what the script computes afterwards. The limits are in
`comparison.py`, the cases in `scripts/`.
"""

import numpy as np
import pytest

from tests.fidelity.cases import CLOSE, EXACT, SCRIPT
from tests.fidelity.comparison import compare
from tests.fidelity.conftest import Record, Run

LOSS = 0.2
ACCURACY = 0.05


@pytest.mark.parametrize(("case", "num_workers"), EXACT)
def test_case_is_exact(case: str, num_workers: int, run: Run, record: Record) -> None:
    differences = compare(run(case, 0), run(case, num_workers))
    record(case, num_workers, differences)
    beyond = [str(difference) for difference in differences if not difference.within]
    assert not beyond, f"{case} on {num_workers} workers:\n" + "\n".join(beyond)


@pytest.mark.parametrize(("case", "num_workers"), CLOSE)
def test_random_layers_are_close(case: str, num_workers: int, run: Run) -> None:
    """Several workers draw other masks and see other means: as close as another seed would be.

    Under plain python five other seeds move the loss of the last epoch by up to LOSS and the accuracies by up to
    ACCURACY below; a run that trained on a part of the data, or with another rate, is further off than that.
    """
    plain, distributed = run(case, 0), run(case, num_workers)
    for name in ("history/loss", "history/val_loss"):
        assert distributed[name][-1] == pytest.approx(plain[name][-1], rel=LOSS), name
    for name in ("history/accuracy", "history/val_accuracy"):
        assert distributed[name][-1] == pytest.approx(plain[name][-1], abs=ACCURACY), name
    assert np.array_equal(distributed["count/iterations"], plain["count/iterations"])


def test_every_case_is_compared() -> None:
    """A case that was added to the scripts and to no list here would prove nothing."""
    listed = {name for name, _ in EXACT + CLOSE}
    sources = [path.read_text() for path in SCRIPT.parent.glob("*.py")]
    decorated = {part.split("(")[0].removeprefix("def ") for text in sources for part in text.split("\n@case\n")[1:]}
    assert listed == decorated
