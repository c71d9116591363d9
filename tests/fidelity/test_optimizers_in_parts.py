"""Every optimizer of Keras 2 and 3 where real ranks hold variables in parts, against plain python."""

import json
from pathlib import Path

import pytest

from tests.helpers.divided import largest_differences
from tests.helpers.processes import run_fdt, run_python
from tests.helpers.thorough import some_of

_SCRIPT = Path(__file__).parent / "scripts" / "optimizers_in_parts.py"
_LIMIT_S = 600.0
# Five products of matrices one after the other, each normalised.
_LIMITS = {"Muon": 5e-5}


@pytest.mark.parametrize(("keras", "num_workers"), some_of([(3, 2), (3, 4), (2, 2), (2, 4)], ()))
def test_an_optimizer_of_parts_gives_what_plain_python_gives(keras: int, num_workers: int, tmp_path: Path) -> None:
    report, plain, trained = tmp_path / "report.json", tmp_path / "plain", tmp_path / "trained"
    generation = {"TF_USE_LEGACY_KERAS": "1"} if keras == 2 else {}
    run_python(_SCRIPT, "--out", plain, limit_s=_LIMIT_S, **generation).expect(0)
    options = ["--report", report, "--variables", "parts"]
    run_fdt(_SCRIPT, "--out", trained, limit_s=_LIMIT_S, workers=num_workers, options=options, **generation).expect(0)
    apart = largest_differences(plain, trained)
    print(f"Keras {keras}, {num_workers} workers: {max(apart.values()):.1e} at most of {len(apart)} optimizers")
    assert {name: value for name, value in apart.items() if value > _LIMITS.get(name, 1e-5)} == {}
    fits = json.loads(report.read_text())["fits"]
    in_parts = [fit["ranks"][0]["divided"][0]["variables"]["in_parts"] for fit in fits]
    # The table and a layer's weights at the least, of each optimizer.
    assert len(in_parts) == len(apart) and min(in_parts) >= 2
