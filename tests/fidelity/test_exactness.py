"""N workers give what plain python gives, up to the order in which floats are summed.

Every case starts from the same seed, trains with `shuffle=True` unless it says otherwise, and is compared array by
array: History, weights, optimizer variables, iterations, and what the script computes afterwards. The limits are in
`comparison.py`, the cases in `scripts/`.
"""

import numpy as np
import pytest

from tests.fidelity.cases import ASYNCHRONOUS, CLOSE, EXACT, KERAS_2, SCRIPT
from tests.fidelity.comparison import compare
from tests.fidelity.conftest import Record, Run

# What another seed does under plain python, and what a fault does (measured; last of 5 epochs):
#                         five other seeds, other masks    rate doubled    rate halved    half of the data
#   loss, Dropout             -10 % .. +12 %                  -27 %           +53 %            +81 %
#   loss, BatchNormalization  -16 % .. +4 %                   -37 %           +57 %            +42 %
#   val_loss                  -0.02 .. +0.09                  -0.10           +0.22            +0.33
#   accuracies                -0.03 .. +0.02                  +0.03           -0.08            -0.12
LOSS_RELATIVE = 0.25
VAL_LOSS = 0.1
ACCURACY = 0.05


@pytest.mark.parametrize(("case", "num_workers"), EXACT)
def test_case_is_exact(case: str, num_workers: int, run: Run, record: Record) -> None:
    differences = compare(run(case, 0), run(case, num_workers))
    record(case, num_workers, differences)
    beyond = [str(difference) for difference in differences if not difference.within]
    assert not beyond, f"{case} on {num_workers} workers:\n" + "\n".join(beyond)


@pytest.mark.parametrize(("case", "num_workers"), CLOSE)
def test_random_layers_are_close(case: str, num_workers: int, run: Run) -> None:
    """Several workers draw other masks and see other means: no further off than another seed would be."""
    plain, distributed = run(case, 0), run(case, num_workers)
    last = {name: (plain[name][-1], distributed[name][-1]) for name in plain if name.startswith("history/")}
    assert last["history/loss"][1] == pytest.approx(last["history/loss"][0], rel=LOSS_RELATIVE)
    assert last["history/val_loss"][1] == pytest.approx(last["history/val_loss"][0], abs=VAL_LOSS)
    for name in ("history/accuracy", "history/val_accuracy"):
        assert last[name][1] == pytest.approx(last[name][0], abs=ACCURACY), name
    assert np.array_equal(distributed["count/iterations"], plain["count/iterations"])


def test_every_case_is_compared() -> None:
    """A case that was added to the scripts and to no list here would prove nothing."""
    listed = {name for name, _ in EXACT + CLOSE} | {*ASYNCHRONOUS, *KERAS_2}
    sources = [path.read_text() for path in SCRIPT.parent.glob("*.py")]
    decorated = {part.split("(")[0].removeprefix("def ") for text in sources for part in text.split("\n@case\n")[1:]}
    assert listed == decorated
