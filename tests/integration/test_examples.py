"""Every client example runs under plain python, and unchanged under `fdt run` in both modes."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import datasets, processes, reports, warm
from tests.helpers.pool import Pool

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "client_examples"
OURS = ("fdt", "hfdt", "nfdt")
NUM_WORKERS = 2
MODES = ("sync", "async")
LIMIT_S = 180.0


@dataclasses.dataclass(frozen=True)
class Example:
    """A script with arguments that make it small.

    Attributes:
        rows: Of an epoch: what is left of the training data without the rows for validation.
        batch_size: As the arguments, or the script's default, have it.
        least_accuracy: Of the test set, that shows that it learnt; None where accuracy is not what it is after.
        loop: Whether it trains in a loop of its own, of which we know steps and rows only.
        streamed: Whether its batches are known only as they come.
        thorough: Modes in which it is run by `make test-all` alone; all of them, and it is run by plain python there alone too.
        downloads: Whether it has Keras fetch its data; from where is settled as Keras is imported, so it takes a new process.
    """

    script: str
    arguments: tuple[str, ...]
    epochs: int
    rows: int
    batch_size: int
    least_accuracy: float | None = None
    loop: bool = False
    downloads: bool = False
    streamed: bool = False
    thorough: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Of all epochs."""
        return self.epochs * -(-self.rows // self.batch_size)


# Each way to train once: `fit` in both modes, a loop, a session. What else they have, tests/fidelity has smaller.
SMALL = [
    Example("digits.py", ("--epochs", "3"), 3, 1293, 32, 0.8),
    Example(
        "fashion_mnist_cnn.py",
        ("--epochs", "3", "--batch-size", "32"),
        3,
        540,
        32,
        0.5,
        downloads=True,
        thorough=MODES,
    ),
    Example(
        "cifar10_resnet.py",
        ("--epochs", "1", "--batch-size", "16", "--limit", "64"),
        epochs=1,
        rows=64,
        batch_size=16,
        downloads=True,
        thorough=MODES,
    ),
    Example("custom_layer.py", ("--epochs", "3"), 3, 1293, 32, 0.8, thorough=MODES),
    Example("gan.py", ("--epochs", "2"), 2, 1438, 64, thorough=MODES),
    Example("training_loop.py", ("--epochs", "3"), 3, 1437, 32, 0.8, loop=True, thorough=("async",)),
    Example("graph_session.py", ("--epochs", "3"), 3, 1437, 32, 0.8, loop=True, thorough=("sync",)),
    Example(
        "vit.py",
        tuple("--epochs 2 --steps 8 --batch-size 16 --size 16 --patch 4 --width 32 --depth 2 --heads 2".split()),
        epochs=2,
        rows=128,
        batch_size=16,
        streamed=True,
        thorough=MODES,
    ),
    Example(
        "lstm_text.py",
        tuple("--epochs 2 --sentences 320 --words 9 --embedding 16 --units 8".split()),
        epochs=2,
        rows=288,
        batch_size=64,
        streamed=True,
        thorough=MODES,
    ),
    Example(
        "unet.py",
        tuple("--epochs 2 --images 32 --size 16 --width 4 --levels 2 --batch-size 8".split()),
        epochs=2,
        rows=32,
        batch_size=8,
        loop=True,
        thorough=MODES,
    ),
]


def _marked(values: tuple[Any, ...], example: Example, modes: tuple[str, ...]) -> Any:
    is_thorough = set(modes) <= set(example.thorough)
    name = "-".join((example.script, *values[1:]))
    return pytest.param(*values, id=name, marks=pytest.mark.thorough if is_thorough else ())


LAST_LINE = re.compile(r"final loss (\d+\.\d+)  test accuracy ([01]\.\d+)")
# What may be another in another run: measured values and times, not the numbers of epochs and steps.
TIME = re.compile(r"\b\d+(us|ms|s)\b")
VALUE = re.compile(r"\b\d+\.\d+(e[+-]?\d+)?\b")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return datasets.environment(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Example], str]:
    """Returns what an example prints under plain python; each runs once."""
    printed: dict[str, str] = {}

    def output(example: Example) -> str:
        if example.script not in printed:
            command, cwd = (EXAMPLES / example.script, *example.arguments), tmp_path_factory.mktemp("plain")
            way = processes if example.downloads else warm
            printed[example.script] = way.run_python(*command, limit_s=LIMIT_S, cwd=cwd, **environ).expect(0).stdout
        return printed[example.script]

    return output


def check_last_line(output: str, least_accuracy: float | None) -> None:
    match = LAST_LINE.fullmatch(output.splitlines()[-1])
    assert match, f"The last line is not the result. Received: {output.splitlines()[-1]!r}"
    if least_accuracy is not None:
        assert float(match[2]) >= least_accuracy


def shape(output: str) -> list[str]:
    """Returns the lines with a mark for every measured value; one that is not a finite number stays."""
    return [VALUE.sub("#", TIME.sub("#", line)) for line in output.splitlines()]


def check_report(report: dict[str, Any], mode: str, example: Example) -> None:
    """The report says that two workers did the script's steps, and computed on each row once an epoch."""
    assert (report["mode"], report["workers"], report["exit_status"]) == (mode, NUM_WORKERS, 0)
    (fit,) = report["fits"]
    ranks = fit["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(NUM_WORKERS))
    epochs, batch = (0, None) if example.loop else (example.epochs, None if example.streamed else example.batch_size)
    told = (example.steps, epochs, batch)
    assert (fit["steps"], fit["epochs"], fit["global_batch"]) == told
    assert sum(rank["samples"] for rank in ranks) == example.epochs * example.rows
    assert fit["bytes_exchanged"] > 0
    if mode == "sync":
        assert [rank["steps"] for rank in ranks] == [example.steps] * NUM_WORKERS
        assert all(rank["samples"] > 0 for rank in ranks)
    else:
        # Which worker takes how many of the batches is left to the machine; that each is one update is not.
        assert sum(rank["steps"] for rank in ranks) == example.steps
        assert sum(times for rank in ranks for times in rank.get("delays", {}).values()) == example.steps


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {example.script for example in SMALL}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_imports_nothing_of_ours(path: Path) -> None:
    assert not re.search(rf"^\s*(import|from)\s+({'|'.join(OURS)})\b", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("example", [_marked((example,), example, MODES) for example in SMALL])
def test_plain_python(example: Example, plain: Callable[[Example], str]) -> None:
    check_last_line(plain(example), example.least_accuracy)


@pytest.mark.parametrize(
    ("example", "mode"), [_marked((example, mode), example, (mode,)) for example in SMALL for mode in MODES]
)
def test_fdt_run(
    example: Example, mode: str, plain: Callable[[Example], str], environ: dict[str, str], pool: Pool, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    # Those that need a new process run as a person types it, with a pool of their own.
    way, options = (processes, ()) if example.downloads else (warm, pool.options)
    output = way.run_fdt(
        EXAMPLES / example.script, *example.arguments, workers=NUM_WORKERS, mode=mode,
        options=("--report", report, *options), limit_s=LIMIT_S, cwd=tmp_path, **environ,
    ).expect(0).stdout  # fmt: skip
    check_last_line(output, example.least_accuracy)
    assert shape(output) == shape(plain(example))
    check_report(reports.read(report), mode, example)
