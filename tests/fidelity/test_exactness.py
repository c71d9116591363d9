"""N workers give what plain python gives, up to the order in which floats are summed.

Every case starts from the same seed, trains with `shuffle=True` unless it says otherwise, and is compared array by
array: History, weights, optimizer variables, iterations, and what the script computes afterwards. The limits are in
`comparison.py`, the cases in `scripts/`.
"""

import pytest

from tests.fidelity.cases import SCRIPT
from tests.fidelity.comparison import compare
from tests.fidelity.conftest import Record, Run
from tests.fidelity.selection import EXACT, LISTED


@pytest.mark.parametrize(("case", "num_workers"), EXACT)
def test_case_is_exact(case: str, num_workers: int, run: Run, record: Record) -> None:
    differences = compare(run(case, 0), run(case, num_workers))
    record(case, num_workers, differences)
    beyond = [str(difference) for difference in differences if not difference.within]
    assert not beyond, f"{case} on {num_workers} workers:\n" + "\n".join(beyond)


def test_every_case_is_compared() -> None:
    """A case in no list here would prove nothing; `test_validation.py` runs all of its script."""
    sources = [path.read_text() for path in SCRIPT.parent.glob("*.py") if path.name != "validations.py"]
    decorated = {part.split("(")[0].removeprefix("def ") for text in sources for part in text.split("\n@case\n")[1:]}
    assert decorated == LISTED
