"""Pools on the oldest and on the newest TensorFlow and Python: both modes, clients of either, Keras 2 and 3, examples.

See `test_clients.py` for what these take. Horovod is built for each, or taken from the user's cache.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pool import Pool, serve
from tests.helpers.processes import run
from tests.matrix.environments import LIMIT_S, NEWEST, OLDEST, ROOT, Version, check_cases, make, needs_uv

pytestmark = needs_uv
CASES = (
    "adam conv last_batch_3 masked_gru sparse_embedding custom_train_step data_dataset_shuffled data_generator keras_callbacks "
    "loop_metrics loop_by_hand session_feed"
)
KERAS_2 = "adam sparse_embedding custom_train_step loop_metrics"
# One asynchronous worker gives plain python's results too.
ALONE = "adam conv sparse_embedding custom_train_step loop_metrics"
EXAMPLES = ("digits.py", "training_loop.py", "gan.py")


@dataclasses.dataclass(frozen=True)
class Place:
    """A pool, and the environment that it and clients beside it have."""

    pool: Pool
    python: Path
    version: Version
    other: Version


@pytest.fixture(scope="module", params=[OLDEST, NEWEST], ids=str)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("pool")
    python = make(folder / "venv", request.param, "[pool]")
    with serve(folder, mode="both", python=python) as pool:
        yield Place(pool, python, request.param, NEWEST if request.param == OLDEST else OLDEST)


def test_synchronous_workers_train_as_python_does(place: Place, tmp_path: Path) -> None:
    check_cases(place.python, CASES, place.pool, tmp_path, "--workers", "2")


def test_with_keras_2_too(place: Place, tmp_path: Path) -> None:
    check_cases(place.python, KERAS_2, place.pool, tmp_path, "--workers", "2", TF_USE_LEGACY_KERAS="1")


def test_an_asynchronous_worker_trains_as_python_does(place: Place, tmp_path: Path) -> None:
    check_cases(place.python, ALONE, place.pool, tmp_path, "--mode", "async", "--workers", "1")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_examples_run(mode: str, place: Place, tmp_path: Path) -> None:
    for name in EXAMPLES:
        example = ROOT / "client_examples" / name
        command = [
            place.python,
            "-m",
            "fdt",
            "run",
            "--mode",
            mode,
            "--workers",
            "2",
            *place.pool.options,
            example,
            "--epochs",
            "2",
        ]
        done = run(command, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
        assert "nothing was distributed" not in done.stderr, done.describe()


def test_a_client_of_the_other_end_trains_here(place: Place, tmp_path: Path) -> None:
    client = make(tmp_path / "venv", place.other)
    check_cases(client, CASES, place.pool, tmp_path, "--workers", "2")
