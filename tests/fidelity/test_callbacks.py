"""A callback sees what it would see under plain python: every hook, in the same order, with the same keys in its logs."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.pool import Pool
from tests.helpers.thorough import some_of
from tests.helpers.warm import run_fdt, run_python

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "all_hooks.py"
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run_python(SCRIPT, limit_s=LIMIT_S, cwd=tmp_path_factory.mktemp("plain")).expect(0).stdout.splitlines()


@pytest.mark.parametrize("mode", some_of(["sync", "async"], "sync"))
def test_every_hook_is_called_in_the_same_order_with_the_same_keys(
    mode: str, plain: list[str], pool: Pool, tmp_path: Path
) -> None:
    finished = run_fdt(SCRIPT, mode=mode, options=pool.options, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    distributed = finished.stdout.splitlines()
    assert len([line for line in plain if line.startswith("on_")]) > 100
    assert distributed == plain


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_what_a_callback_looks_at_comes_home_between_batches(mode: str, pool: Pool, tmp_path: Path) -> None:
    script, report = SCRIPTS / "watched_each_batch.py", tmp_path / "report"
    plain = json.loads(run_python(script, limit_s=LIMIT_S).expect(0).stdout)
    # One asynchronous worker: without delay, so that it sees plain python's values.
    options = (*pool.options, "--report", report)
    workers = 2 if mode == "sync" else 1
    finished = run_fdt(script, mode=mode, workers=workers, options=options, limit_s=LIMIT_S).expect(0)
    (fit,), told = json.loads(report.read_text())["fits"], json.loads(finished.stdout)
    assert fit["steps"] == 80
    # All variables once, at the end; in between a metric of two numbers for each batch, and a weight now and then.
    assert told["bytes"] <= fit["bytes_from_pool"] < 1.05 * told["bytes"]
    np.testing.assert_allclose(told["seen"], plain["seen"], rtol=1e-4)
