"""A pool that is served reads the folders of data that its operator lists, and nothing without them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.fidelity.scripts import rows_of_files
from tests.helpers import cluster as hosts
from tests.helpers.pool import Pool, serve
from tests.helpers.processes import run
from tests.helpers.thorough import some_of
from tests.helpers.warm import run_fdt, run_python

_SCRIPT = Path(rows_of_files.__file__)
_LIMIT_S = 300.0
_CASE, _KEPT = "mapped", "as_in_tutorials"


@pytest.fixture(scope="module")
def plain(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("plain") / "figures"
    run_python(_SCRIPT, "--folder", images, "--out", out, "--cases", f"{_CASE},{_KEPT}", limit_s=_LIMIT_S).expect(0)
    return {**_made(out), _KEPT: _made(out, _KEPT)}


def _made(out: Path, case: str = _CASE) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(out.read_text())[case]
    return made


def _trained(pool: Pool, images: Path, out: Path, *options: str, case: str = _CASE) -> tuple[dict[str, Any], str]:
    arguments = ("--folder", images, "--out", out, "--cases", case)
    given = (*pool.options, *options)
    finished = run_fdt(_SCRIPT, *arguments, workers=2, options=given, limit_s=_LIMIT_S).expect(0)
    return _made(out, case), finished.stderr


def test_workers_read_below_the_listed_folders(images: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    with serve(tmp_path, options=["--data", str(images.parent)]) as pool:
        made, said = _trained(pool, images, tmp_path / "out")
        assert "which the workers read from files" in said
        assert made["loss"] == pytest.approx(plain["loss"], rel=1e-6)
        assert made["looked"] == plain["looked"]
        # What a cache keeps is read again in each pass, in the order in which it was kept; after the script has taken it from
        # its own cache, from there.
        made, said = _trained(pool, images, tmp_path / "out", case=_KEPT)
        assert "which the workers read from files" in said
        for name in ("loss", "val_loss", "again"):
            assert made[name] == pytest.approx(plain[_KEPT][name], rel=1e-6)
        assert made["looked"] == plain[_KEPT]["looked"]


def test_a_folder_may_have_another_name_where_workers_read_it(
    images: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    there = tmp_path / "there" / "photos"
    shutil.copytree(images, there)
    with serve(tmp_path, options=["--data", str(there.parent)]) as pool:
        _, said = _trained(pool, images, tmp_path / "out")
        assert "data: their files are read on this machine: " in said and str(images) in said
        made, said = _trained(pool, images, tmp_path / "out", f"--data-map={images}={there}")
        assert "which the workers read from files" in said
        assert made["loss"] == pytest.approx(plain["loss"], rel=1e-6)
        assert made["looked"] == plain["looked"]


@hosts.NEEDS[0]
@hosts.NEEDS[1]
@pytest.mark.parametrize("mode", some_of(["sync", "async"], "sync"))
def test_workers_of_a_host_that_joined_read_them_too(
    mode: str, images: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    there, out = ["--data", str(images.parent)], tmp_path / "out"
    with hosts.namespaces() as names, hosts.serving(names, tmp_path, mode, there) as cluster, cluster.host():
        arguments = ("--folder", str(images), "--out", str(out), "--cases", _CASE)
        finished = run(cluster.command(_SCRIPT, *arguments), limit_s=_LIMIT_S, cwd=tmp_path).expect(0)
    assert "which the workers read from files" in finished.stderr
    assert "are read on this machine" not in finished.stderr
    made = _made(out)
    assert made["looked"] == plain["looked"]
    if mode == "sync":
        assert made["loss"] == pytest.approx(plain["loss"], rel=1e-6)


def test_without_folders_the_rows_come_from_the_script(
    pool: Pool, images: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    made, said = _trained(pool, images, tmp_path / "out")
    assert "which the workers read" not in said
    assert "data: their files are read on this machine: the pool's workers read no files" in said
    assert made["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert made["looked"] == plain["looked"]


@hosts.NEEDS[0]
@hosts.NEEDS[1]
def test_a_host_that_joined_reads_what_it_lists_itself(images: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    out, there, asked = tmp_path / "out", tmp_path / "named" / "so", tmp_path / "here"
    there.parent.mkdir()
    there.symlink_to(images)
    asked.mkdir()
    # The pool's operator lists the folder; the host's lists another, in which a link leads to it.
    with (
        hosts.namespaces() as names,
        hosts.serving(names, tmp_path, "sync", ["--data", str(images.parent)]) as cluster,
        cluster.host(options=["--data", str(there.parent)]),
    ):
        arguments = ("--folder", str(images), "--out", str(out), "--cases", _CASE)
        for mapped in ((), (f"--data-map={images}={there}",)):
            command = cluster.command(_SCRIPT, *arguments, options=mapped)
            finished = run(command, limit_s=_LIMIT_S, cwd=asked).expect(0)
            assert "their files are read on this machine: " in finished.stderr
            assert "is in no folder that the pool's operator lists (--data)" in finished.stderr
            assert "which the workers read" not in finished.stderr
            assert _made(out)["loss"] == pytest.approx(plain["loss"], rel=1e-6)
