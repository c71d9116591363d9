"""Steps written to be hard to divide, on real ranks: 15 rows and 3, so that of four workers one has none of the last batch."""

import json
from pathlib import Path

import pytest

from tests.fidelity.selection import ALL
from tests.helpers.divided import largest_differences
from tests.helpers.hard_steps import STEPS
from tests.helpers.processes import run_fdt, run_python
from tests.helpers.thorough import some_of

_SCRIPT = Path(__file__).parent / "scripts" / "hard_steps.py"
_NUM_STEPS = 4
# All of them are in `tests/division`, on simulated ranks.
_CHOSEN = list(STEPS) if ALL else list(STEPS)[::6]
_LIMIT_S = 600.0
# With a layer so wide weights are large enough to be held in parts.
_WIDTHS = {"whole": "8", "parts": "4096"}
# Sums over all features, or over pairs of them: of 4,096 single precision leaves three to five digits, as many with whole
# variables.
_OF_ALL_FEATURES = ("determinant", "variance_and_covariance", "decorrelation", "cumulative", "softmax_over_each_class")
# These decompose or invert a matrix of all features, every process for itself: four need minutes on two cores.
_DECOMPOSING = ("whitened", "natural_gradient")


@pytest.mark.parametrize(
    ("num_workers", "held"), some_of([(2, "whole"), (4, "whole"), (2, "parts"), (4, "parts")], [(2, "whole")])
)
def test_hard_steps_give_what_plain_python_gives(num_workers: int, held: str, tmp_path: Path) -> None:
    steps = [name for name in _CHOSEN if held == "whole" or name not in _OF_ALL_FEATURES]
    if (num_workers, held) == (4, "parts"):
        steps = [name for name in steps if name not in _DECOMPOSING]
    report, plain, trained = tmp_path / "report.json", tmp_path / "plain", tmp_path / "trained"
    width = {"HARD_NET_HIDDEN": _WIDTHS[held]}
    in_python = run_python(_SCRIPT, "--out", plain, "--steps", *steps, limit_s=_LIMIT_S, **width).expect(0)
    options, arguments = ["--report", report, "--variables", held], ("--out", trained, "--steps", *steps)
    finished = run_fdt(_SCRIPT, *arguments, limit_s=_LIMIT_S, workers=num_workers, options=options, **width).expect(0)
    assert finished.said_besides(in_python) == []
    apart = largest_differences(plain, trained)
    print(f"{len(apart)} steps on {num_workers} workers: {max(apart.values()):.1e} at most")
    assert list(apart) == sorted(steps)
    assert {name: value for name, value in apart.items() if value > 1e-5} == {}
    # All of them were made by workers: one that stays here is equal for nothing.
    (fit,) = json.loads(report.read_text())["fits"]
    assert fit["steps"] == _NUM_STEPS * len(steps)
