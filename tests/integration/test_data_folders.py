"""A pool that is served reads the folders of data that its operator lists, and nothing without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fidelity.scripts import rows_of_files
from tests.helpers.pool import Pool, serve
from tests.helpers.warm import run_fdt, run_python

_SCRIPT = Path(rows_of_files.__file__)
_LIMIT_S = 300.0
_CASE = "mapped"


@pytest.fixture(scope="module")
def plain(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("plain") / "figures"
    run_python(_SCRIPT, "--folder", images, "--out", out, "--cases", _CASE, limit_s=_LIMIT_S).expect(0)
    return _made(out)


def _made(out: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(out.read_text())[_CASE]
    return made


def _trained(pool: Pool, images: Path, out: Path) -> tuple[dict[str, Any], str]:
    arguments = ("--folder", images, "--out", out, "--cases", _CASE)
    finished = run_fdt(_SCRIPT, *arguments, workers=2, options=pool.options, limit_s=_LIMIT_S).expect(0)
    return _made(out), finished.stderr


def test_workers_read_below_the_listed_folders(images: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    with serve(tmp_path, options=["--data", str(images.parent)]) as pool:
        made, said = _trained(pool, images, tmp_path / "out")
        assert "which the workers read from files" in said
        assert made["loss"] == pytest.approx(plain["loss"], rel=1e-6)
        assert made["looked"] == plain["looked"]


def test_without_folders_the_rows_come_from_the_script(
    pool: Pool, images: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    made, said = _trained(pool, images, tmp_path / "out")
    assert "which the workers read" not in said
    assert "data: their files are read on this machine: the pool's workers read no files" in said
    assert made["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert made["looked"] == plain["looked"]
