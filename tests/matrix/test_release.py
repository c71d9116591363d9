"""What is given away, tried in empty environments: wheel and sources in `dist/`, and wheels of what is compiled.

`make release` builds these and runs this file. Before the changelog has a date the first test fails.
"""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.helpers.processes import run
from tests.matrix.environments import LIMIT_S, ROOT, UV, uv_installs, virtual_environment

DIST = os.environ.get("FDT_DIST", "")
pytestmark = pytest.mark.skipif(not DIST, reason="tries what `make release` has built")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PYTHONS = ("3.11", "3.12", "3.13")
TRAIN = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.arange(64, dtype="float32").reshape(16, 4) / 64
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("losses", model.fit(x, x[:, 0], batch_size=4, epochs=2, verbose=0).history["loss"])
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    (built,) = Path(DIST).glob("fdt-*.whl")
    return built.absolute()


def trains(python: Path, folder: Path, *options: str, **environ: str) -> None:
    """Checks that a script under `fdt run` prints what it prints by itself."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    plain = run([python, script], limit_s=LIMIT_S, cwd=folder).expect(0)
    ours = run([python, "-m", "fdt", "run", *options, script], limit_s=LIMIT_S, cwd=folder, **environ).expect(0)
    assert _losses(ours.stdout) == pytest.approx(_losses(plain.stdout), rel=1e-5)


def _losses(text: str) -> list[float]:
    (line,) = re.findall(r"^losses \[(.*)\]$", text, re.MULTILINE)
    return [float(loss) for loss in line.split(", ")]


def test_the_changelog_begins_with_this_version_and_its_date() -> None:
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert re.fullmatch(rf"{re.escape(VERSION)} \(20\d\d-\d\d-\d\d\)", heading[1]), heading[1]


def test_what_is_built_is_what_is_committed() -> None:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert not status.stdout, "commit, or set aside"
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert f"v{VERSION}" not in tags.stdout.split(), "this version has been released before"


def test_wheel_and_sources_have_this_version(wheel: Path) -> None:
    assert wheel.name == f"fdt-{VERSION}-py3-none-any.whl"
    assert (Path(DIST) / f"fdt-{VERSION}.tar.gz").exists()


@pytest.mark.parametrize("version", PYTHONS)
def test_an_empty_environment_trains_without_a_compiler(version: str, wheel: Path, tmp_path: Path) -> None:
    """In both modes, with one worker: several synchronous ones need Horovod."""
    python = virtual_environment(tmp_path / "venv", version)
    uv_installs(python, f"{wheel}[pool]")
    for mode in ("async", "sync"):
        # Where no compiler is found.
        trains(python, tmp_path, "--mode", mode, "--workers", "1", PATH=str(python.parent))


def test_an_environment_that_has_tensorflow_keeps_its_packages(wheel: Path, tmp_path: Path) -> None:
    python = virtual_environment(tmp_path / "venv", "3.11")
    uv_installs(python, "tensorflow==2.18.1")
    before = _installed(python)
    uv_installs(python, f"{wheel}[pool]")
    after = _installed(python)
    assert {name: after.get(name) for name in before} == before


def test_hosts_without_a_compiler_take_what_another_compiled(wheel: Path, tmp_path: Path) -> None:
    """Two synchronous workers, with the Horovod and the operations of `fdt setup --wheel`."""
    (tensorflow,) = re.findall(r"1tf([0-9.]+)-", next(Path(DIST).glob("fdt_operations-*.whl")).name)
    (tag,) = re.findall(r"-cp3(\d+)-cp3", next(Path(DIST).glob("horovod-*.whl")).name)
    python = virtual_environment(tmp_path / "venv", f"3.{tag}")
    given = [
        str(path.absolute()) for kind in ("fdt_operations", "horovod") for path in Path(DIST).glob(f"{kind}-*.whl")
    ]
    uv_installs(python, f"tensorflow=={tensorflow}", f"{wheel}[pool]", *given)
    # Nothing that this machine has compiled before is found, either.
    environ = {"PATH": str(python.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for mode in ("sync", "async"):
        trains(python, tmp_path, "--mode", mode, "--workers", "2" if mode == "sync" else "1", **environ)


def _installed(python: Path) -> dict[str, str]:
    listed = subprocess.run(
        [UV, "pip", "list", "--format", "freeze", "--python", python],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return dict(line.split("==") for line in listed.stdout.split() if "==" in line)
