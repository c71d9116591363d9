"""Every client example runs under plain python, and unchanged under `fdt run`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers import datasets

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "client_examples"
OURS = ("fdt", "hfdt", "nfdt", "protos")
LAST_LINE = re.compile(r"final loss (\d+\.\d+)  test accuracy ([01]\.\d+)")

# Script, its arguments, the least test accuracy that shows that it learnt (None: accuracy is not what it is after).
SMALL = [
    ("digits.py", ["--epochs", "3"], 0.8),
    ("fashion_mnist_cnn.py", ["--epochs", "3", "--batch-size", "32"], 0.5),
    ("cifar10_resnet.py", ["--epochs", "1", "--batch-size", "16", "--limit", "64"], None),
    ("custom_layer.py", ["--epochs", "3"], 0.8),
    ("gan.py", ["--epochs", "2"], None),
]
NUM_FITS = 1


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = datasets.environment(tmp_path_factory.mktemp("data"))
    return os.environ | made | {"TF_CPP_MIN_LOG_LEVEL": "2"}


def run(command: Sequence[str], environ: dict[str, str], folder: Path) -> str:
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_last_line(output: str, least_accuracy: float | None) -> None:
    match = LAST_LINE.fullmatch(output.splitlines()[-1])
    assert match, f"The last line is not the result. Received: {output.splitlines()[-1]!r}"
    if least_accuracy is not None:
        assert float(match[2]) >= least_accuracy


def check_report(report: dict) -> None:
    """The report says that the work was done by two workers."""
    assert (report["mode"], report["workers"], report["exit_status"]) == ("sync", 2, 0)
    assert len(report["fits"]) == NUM_FITS
    fit = report["fits"][0]
    assert fit["steps"] > 0
    assert fit["bytes_exchanged"] > 0
    assert [rank["rank"] for rank in fit["ranks"]] == [0, 1]
    assert all(rank["samples"] > 0 for rank in fit["ranks"])


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {script for script, _, _ in SMALL}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_imports_nothing_of_ours(path: Path) -> None:
    assert not re.search(rf"^\s*(import|from)\s+({'|'.join(OURS)})\b", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("script", "arguments", "least_accuracy"), SMALL)
def test_plain_python(
    script: str, arguments: list[str], least_accuracy: float | None, environ: dict[str, str], tmp_path: Path
) -> None:
    check_last_line(run([str(EXAMPLES / script), *arguments], environ, tmp_path), least_accuracy)


@pytest.mark.parametrize(("script", "arguments", "least_accuracy"), SMALL)
def test_fdt_run(
    script: str, arguments: list[str], least_accuracy: float | None, environ: dict[str, str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    fdt = ["-m", "fdt", "run", "--mode", "sync", "--workers", "2", "--report", str(report)]
    check_last_line(run([*fdt, str(EXAMPLES / script), *arguments], environ, tmp_path), least_accuracy)
    check_report(json.loads(report.read_text()))
