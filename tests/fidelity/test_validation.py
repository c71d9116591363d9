"""A validation on the workers gives what plain python gives: figures, printed lines, callbacks; no weights come home."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fidelity.comparison import compare
from tests.helpers.pool import Pool
from tests.helpers.warm import run_fdt, run_python

_SCRIPTS = Path(__file__).parent / "scripts"
_LIMIT_S = 500.0
# Relative to a figure, or absolute for one below 1.
_LIMIT = 1e-6


# What differs between the generations of Keras, what differs where a worker has a third of the rows, and what does not.
_OF_KERAS_2 = "callbacks_of_an_epoch,unknown_length,generated_here,fits_in_turn"
_OF_WORKERS = "weighted_rows,two_outputs,recurrent_and_masked"
_OF_ALL = (
    "split_every_second_epoch,some_steps,callbacks_of_batches_here,other_weights,best_weights,rows_of_a_data_set,"
    "shorter_than_said,several_steps_a_call,own_test_step_that_counts_here,own_test_step_that_draws_here,own_evaluate_here,"
    "evaluated_in_a_callback"
)


class Made:
    """What the script gave in one run."""

    def __init__(self, out: Path, printed: str) -> None:
        self.figures: dict[str, dict[str, Any]] = json.loads(out.read_text())
        self.lines = printed.splitlines()


@pytest.mark.parametrize(
    ("mode", "keras", "num_workers", "cases"),
    [
        pytest.param("sync", 3, 2, _OF_ALL, id="keras 3"),
        pytest.param("sync", 2, 2, _OF_KERAS_2, id="keras 2"),
        pytest.param("sync", 3, 3, _OF_WORKERS, id="3 workers", marks=pytest.mark.thorough),
        pytest.param("async", 3, 1, _OF_WORKERS, id="asynchronous"),
        pytest.param("sync", 3, 2, None, id="all", marks=pytest.mark.thorough),
        pytest.param("sync", 3, 1, _OF_WORKERS, id="1 worker", marks=pytest.mark.thorough),
        pytest.param("async", 3, 1, None, id="all, asynchronous", marks=pytest.mark.thorough),
        pytest.param("async", 2, 1, None, id="all, keras 2, asynchronous", marks=pytest.mark.thorough),
    ],
)
def test_validations_give_what_plain_python_gives(
    mode: str, keras: int, num_workers: int, cases: str | None, pool: Pool, tmp_path: Path
) -> None:
    chosen = ("--keras", str(keras), *(("--cases", cases) if cases else ()))
    script, out, report = _SCRIPTS / "validations.py", tmp_path / "figures", tmp_path / "report"
    printed = run_python(script, "--out", tmp_path / "plain", *chosen, limit_s=_LIMIT_S).expect(0).stdout
    plain = Made(tmp_path / "plain", printed)
    # The pool's workers are synchronous.
    options = (*(pool.options if mode == "sync" else ()), "--report", report)
    arguments = ("--out", out, *chosen)
    finished = run_fdt(script, *arguments, mode=mode, workers=num_workers, options=options, limit_s=_LIMIT_S).expect(0)
    made = Made(out, finished.stdout)
    differences = compare({"text/lines": np.array(plain.lines)}, {"text/lines": np.array(made.lines)})
    assert all(difference.within for difference in differences), _first_difference(plain.lines, made.lines)
    assert {name: list(figures) for name, figures in made.figures.items()} == {
        name: list(figures) for name, figures in plain.figures.items()
    }
    apart = {
        f"{name} {key}": _apart(value, made.figures[name][key])
        for name, figures in plain.figures.items()
        for key, value in figures.items()
    }
    print(f"{len(apart)} figures on {num_workers} workers: {max(apart.values()):.1e} at most")
    assert {name: value for name, value in apart.items() if value > _LIMIT} == {}
    _check_places(json.loads(report.read_text())["fits"], list(made.figures))


def _check_places(fits: list[dict[str, Any]], names: list[str]) -> None:
    """Checks that those validated on the workers that can be: one that stays on the script's machine is equal for nothing."""
    # One of them trains three times.
    of = [name for name in names for _ in range(3 if name == "fits_in_turn" else 1)]
    here = {name for name, record in zip(of, fits, strict=True) if not record["test_steps"]}
    assert here == {name for name in names if name.endswith("_here")}


def _apart(one: Any, other: Any) -> float:
    a, b = np.asarray(one, "float64"), np.asarray(other, "float64")
    assert a.shape == b.shape, (one, other)
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(a)), initial=0.0))


def _first_difference(plain: list[str], made: list[str]) -> str:
    pairs = [(one, other) for one, other in zip(plain, made, strict=False) if one != other]
    return f"{len(plain)} and {len(made)} lines; {pairs[:5]}"


def test_no_weights_come_home_for_a_validation(pool: Pool, tmp_path: Path) -> None:
    report = tmp_path / "report"
    options = (*pool.options, "--report", report)
    script = _SCRIPTS / "validated_each_epoch.py"
    plain = run_python(script, limit_s=_LIMIT_S).expect(0).stdout.splitlines()[-1]
    finished = run_fdt(script, options=options, limit_s=_LIMIT_S).expect(0)
    (fit,) = json.loads(report.read_text())["fits"]
    told = json.loads(finished.stdout.splitlines()[-1])
    assert fit["epochs"] == 6 and fit["test_steps"] == 6 * 20
    # Once, after the last epoch.
    assert told["bytes"] <= fit["bytes_from_pool"] < 1.05 * told["bytes"]
    # Adam and ReLU let rounding grow over 120 steps: 2e-5 with some processors' kernels, 1e-7 with others'.
    assert _apart(json.loads(plain)["val_loss"], told["val_loss"]) < 1e-4
    assert "validation runs on the workers, on 2,000 rows" in finished.stderr


def test_asynchronous_workers_validate_with_the_weights_that_all_have_made(tmp_path: Path) -> None:
    report = tmp_path / "report"
    script = _SCRIPTS / "validated_by_all.py"
    finished = run_fdt(script, mode="async", workers=3, options=("--report", report), limit_s=_LIMIT_S).expect(0)
    (fit,) = json.loads(report.read_text())["fits"]
    assert (fit["steps"], fit["test_steps"]) == (15, 3 * 6)
    assert float(finished.stdout.split()[-1]) < 1e-5
    assert "validation runs on the workers" in finished.stderr
    assert "evaluate runs on the workers, on 47 rows that they have" in finished.stderr
