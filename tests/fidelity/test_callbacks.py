"""A callback sees what it would see under plain python: every hook, in the same order, with the same keys in its logs."""

from pathlib import Path

import pytest

from tests.helpers.pool import Pool
from tests.helpers.thorough import some_of
from tests.helpers.warm import run_fdt, run_python

SCRIPT = Path(__file__).parent / "scripts" / "all_hooks.py"
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
