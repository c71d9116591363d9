"""Steps written to be hard to divide, on real ranks: 15 rows and 3, so that of four workers one has none of the last batch."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.fidelity.selection import ALL
from tests.helpers.divided import largest_difference
from tests.helpers.hard_steps import STEPS
from tests.helpers.processes import run_fdt, run_python

_SCRIPT = Path(__file__).parent / "scripts" / "hard_steps.py"
_NUM_STEPS = 4
# All of them are in `tests/division`, on simulated ranks.
_CHOSEN = list(STEPS) if ALL else list(STEPS)[::6]
_LIMIT_S = 600.0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain")
    run_python(_SCRIPT, "--out", out, "--steps", *_CHOSEN, limit_s=_LIMIT_S).expect(0)
    return out


@pytest.mark.parametrize("num_workers", [2, 4] if ALL else [2])
def test_hard_steps_give_what_plain_python_gives(num_workers: int, plain: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--report", report]
    arguments = ("--out", tmp_path, "--steps", *_CHOSEN)
    run_fdt(_SCRIPT, *arguments, limit_s=_LIMIT_S, workers=num_workers, options=options).expect(0)
    apart = {}
    for name in _CHOSEN:
        with np.load(plain / f"{name}.npz") as one, np.load(tmp_path / f"{name}.npz") as other:
            apart[name] = largest_difference([one[key] for key in one.files], [other[key] for key in other.files])
    print(f"{len(apart)} steps on {num_workers} workers: {max(apart.values()):.1e} at most")
    assert {name: value for name, value in apart.items() if value > 1e-5} == {}
    # All of them were made by workers: one that stays here is equal for nothing.
    (fit,) = json.loads(report.read_text())["fits"]
    assert fit["steps"] == _NUM_STEPS * len(_CHOSEN)
