"""Loops of the script's own over files: workers read what the steps take, and all is as in plain python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fidelity.scripts import loops_over_files
from tests.helpers.processes import Finished
from tests.helpers.warm import run_fdt, run_python

_SCRIPT = Path(loops_over_files.__file__)
_LIMIT_S = 500.0
_LIMIT = 1e-6
# Of these each element is trained on as it is.
_READ = ("mapped", "of_keras", "labelled_by_path", "of_both_parts", "records", "records_in_turn")
_OTHERS = ("joined", "eagerly", "step_by_step", "looked_at", "in_any_order", "broken")


@pytest.fixture(scope="module")
def plain(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Finished]:
    out = tmp_path_factory.mktemp("plain") / "figures"
    finished = run_python(_SCRIPT, "--folder", images, "--out", out, limit_s=_LIMIT_S).expect(0)
    return dict(json.loads(out.read_text())), finished


@pytest.mark.parametrize(
    ("mode", "num_workers", "cases"),
    [
        pytest.param("sync", 2, (*_READ, *_OTHERS), id="2 workers"),
        pytest.param("async", 1, ("mapped", "records", "eagerly", "looked_at"), id="asynchronous"),
        pytest.param("sync", 3, ("of_keras", "records_in_turn", "broken"), id="3 workers", marks=pytest.mark.thorough),
    ],
)
def test_loops_over_files_are_as_in_plain_python(
    mode: str,
    num_workers: int,
    cases: tuple[str, ...],
    images: Path,
    plain: tuple[dict[str, Any], Finished],
    tmp_path: Path,
) -> None:
    figures, in_python = plain
    out = tmp_path / "figures"
    arguments = ("--folder", images, "--out", out, "--cases", ",".join(cases))
    finished = run_fdt(_SCRIPT, *arguments, workers=num_workers, mode=mode, limit_s=_LIMIT_S).expect(0)
    made = json.loads(out.read_text())
    assert list(made) == list(cases)
    for case in cases:
        assert made[case]["looked"] == figures[case]["looked"], case
        for name in ("losses", "weights"):
            found, expected = made[case][name], figures[case][name]
            assert len(found) == len(expected), (case, name)
            np.testing.assert_allclose(found, expected, rtol=_LIMIT, atol=_LIMIT, err_msg=f"{case} {name}")
    read = [line for line in finished.stderr.splitlines() if "which the workers read from files" in line]
    assert len(read) >= len(set(cases) & set(_READ))
    assert finished.said_besides(in_python) == []


def test_of_a_loop_over_files_no_image_travels(images: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    arguments = ("--folder", images, "--out", tmp_path / "figures", "--cases", "of_keras")
    run_fdt(_SCRIPT, *arguments, workers=2, mode="sync", options=("--report", report), limit_s=_LIMIT_S).expect(0)
    # The model, names and numbers of rows: three epochs of images have 3 x 30 x 9 x 12 x 3 x 4 bytes.
    assert max(fit["bytes_to_pool"] for fit in json.loads(report.read_text())["fits"]) < 3 * 30 * 9 * 12 * 3 * 4
