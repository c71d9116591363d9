"""Rows that are files are read by the workers, and give what plain python gives: figures, errors, and what the script sees."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fidelity.scripts import rows_of_files
from tests.helpers.processes import Finished
from tests.helpers.warm import run_fdt, run_python

_SCRIPT = Path(rows_of_files.__file__)
_LIMIT_S = 500.0
_LIMIT = 1e-6
_CASES = (
    *(
        "mapped",
        "of_keras",
        "labelled_by_path",
        "joined",
        "of_both_parts",
        "records",
        "records_in_turn",
        "compressed_records",
        "texts",
        "lines",
        "table",
        "records_of_one_length",
    ),
)
_LAST = ("evaluated_here", "lost", "broken")


@pytest.fixture(scope="module")
def plain(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Finished]:
    out = tmp_path_factory.mktemp("plain") / "figures"
    finished = run_python(_SCRIPT, "--folder", images, "--out", out, limit_s=_LIMIT_S).expect(0)
    return _made(out), finished


def _made(out: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(out.read_text())
    return made


@pytest.mark.parametrize(
    ("mode", "num_workers", "cases"),
    [
        pytest.param("sync", 2, (*_CASES, *_LAST), id="2 workers"),
        pytest.param("sync", 3, ("mapped", "records_in_turn", "broken"), id="3 workers", marks=pytest.mark.thorough),
        pytest.param(
            "async", 1, ("mapped", "records", "lines", "table", "records_of_one_length", "lost"), id="asynchronous"
        ),
        pytest.param("sync", 1, (*_CASES, *_LAST), id="1 worker", marks=pytest.mark.thorough),
    ],
)
def test_workers_read_what_plain_python_reads(
    mode: str,
    num_workers: int,
    cases: tuple[str, ...],
    images: Path,
    plain: tuple[dict[str, Any], Finished],
    tmp_path: Path,
) -> None:
    figures, in_python = plain
    out, report = tmp_path / "figures", tmp_path / "report"
    arguments = ("--folder", images, "--out", out, "--cases", ",".join(cases))
    options = ("--report", report)
    finished = run_fdt(_SCRIPT, *arguments, workers=num_workers, mode=mode, options=options, limit_s=_LIMIT_S).expect(0)
    made = _made(out)
    assert list(made) == list(cases)
    for case in cases:
        for name, value in figures[case].items():
            assert _is_same(value, made[case][name]), (case, name, value, made[case][name])
    assert figures["lost"]["raised"] == "NotFoundError NotFoundError NotFoundError"
    assert figures["broken"]["raised"] == "InvalidArgumentError InvalidArgumentError InvalidArgumentError"
    assert "which the workers read from files" in finished.stderr
    assert "streamed" not in finished.stderr
    # Keras's functions are called less often here, so TensorFlow finds other shares of the calls traced.
    assert finished.said_besides(in_python) == []
    for what in ("evaluate", "predict"):
        assert re.search(rf"{what} runs on the workers, on \d+ rows that they read from files", finished.stderr)
    # The model, names and numbers of rows went out, no image: three epochs of them have 3 x 30 x 9 x 12 x 3 x 4 bytes.
    largest = max(fit["bytes_to_pool"] for fit in json.loads(report.read_text())["fits"])
    assert largest < 3 * 30 * 9 * 12 * 3 * 4


def _is_same(one: Any, other: Any) -> bool:
    """Whether figures agree up to rounding, and all else is equal."""
    if not isinstance(one, list) or not one or not isinstance(one[0], float):
        return bool(one == other)
    return bool(np.allclose(one, other, rtol=_LIMIT, atol=_LIMIT))
