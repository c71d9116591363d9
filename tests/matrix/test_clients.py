"""Clients on other versions of TensorFlow and Python train on this pool as they train by themselves.

Each gets an environment of its own with the client's packages only, which takes minutes: `make test-matrix` runs this, `make
test` does not. The newest Keras that a TensorFlow accepts is what its users have.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fidelity.cases import SCRIPT
from tests.fidelity.comparison import compare
from tests.helpers.pool import Pool, serve
from tests.helpers.processes import run
from tests.helpers.registry import registry, unjudged

UV = os.environ.get("FDT_UV", "")
pytestmark = pytest.mark.skipif(not UV, reason="installs other TensorFlows; `make test-matrix` runs it")

ROOT = Path(__file__).parents[2]
# Those that there are wheels for; the pool has 2.18 on the Python that runs this.
VERSIONS = list(itertools.product(("2.16.2", "2.18.1", "2.21.0"), ("3.11", "3.12")))
CASES = (
    "adam conv last_batch_3 reduction_sum sample_weight masked_gru sparse_embedding custom_train_step gan second_fit "
    "data_dataset_shuffled data_dataset_mapped data_generator data_ragged data_strings data_on_batch keras_callbacks "
    "loss_contrastive one_size_written_out data_of_two_sizes "
    "loop_metrics loop_returns loop_by_hand loop_checkpoint loop_static loop_over_data loop_printed loop_contrastive "
    "session_feed session_data_set"
)
# Keras 2 itself makes no initial weights on Python 3.12 before its release for TensorFlow 2.19.
KERAS_2_BROKEN = {("2.16.2", "3.12"), ("2.18.1", "3.12")}
KERAS_2 = "adam reduction_sum sparse_embedding custom_train_step data_dataset_shuffled loop_metrics older_adam newer_loss_scale"
LIMIT_S = 900.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with serve(tmp_path_factory.mktemp("pool")) as running:
        yield running


def named(version: tuple[str, str]) -> str:
    return f"tensorflow {version[0]}, python {version[1]}"


@pytest.fixture(scope="module", params=VERSIONS, ids=named)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment with that TensorFlow and the client."""
    tensorflow, python = request.param
    environment = tmp_path_factory.mktemp("client") / "venv"
    if subprocess.run([UV, "python", "find", python], capture_output=True, check=False, timeout=LIMIT_S).returncode:
        pytest.skip(f"there is no Python {python} on this machine")
    subprocess.run([UV, "venv", "--quiet", "--python", python, environment], check=True, timeout=LIMIT_S)
    keras_2 = f"tf_keras=={tensorflow.rsplit('.', 1)[0]}.*"
    # From 2.21 on TensorFlow does not bring TensorBoard, which a callback of the cases writes for.
    packages = [f"tensorflow=={tensorflow}", keras_2, "tensorboard", "scikit-learn", "scipy", "pandas", "-e", str(ROOT)]
    install = [UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", *packages]
    subprocess.run(install, check=True, timeout=LIMIT_S)
    return environment / "bin" / "python"


def test_every_operation_is_judged(client: Path) -> None:
    """What that TensorFlow's programs may hold is judged as it has it."""
    found = registry(client)
    assert len(found) > 1800
    assert unjudged(found) == []


def test_trains_as_by_itself(client: Path, pool: Pool, tmp_path: Path) -> None:
    check(client, CASES, pool, tmp_path)


@pytest.mark.parametrize("client", [v for v in VERSIONS if v not in KERAS_2_BROKEN], ids=named, indirect=True)
def test_trains_with_keras_2(client: Path, pool: Pool, tmp_path: Path) -> None:
    check(client, KERAS_2, pool, tmp_path, TF_USE_LEGACY_KERAS="1")


def check(client: Path, cases: str, pool: Pool, tmp_path: Path, **environ: str) -> None:
    """Compares what cases give on the pool with what they give by themselves."""
    named = cases.replace(" ", ",")
    plain, distributed = tmp_path / "plain", tmp_path / "distributed"
    run([client, SCRIPT, "--cases", named, "--out", plain], limit_s=LIMIT_S, cwd=tmp_path, **environ).expect(0)
    fdt = [client, "-m", "fdt", "run", "--workers", "2", *pool.options]
    run([*fdt, SCRIPT, "--cases", named, "--out", distributed], limit_s=LIMIT_S, cwd=tmp_path, **environ).expect(0)
    for case in cases.split():
        with np.load(plain / f"{case}.npz") as mine, np.load(distributed / f"{case}.npz") as theirs:
            differences = compare(dict(mine), dict(theirs))
        beyond = [str(difference) for difference in differences if not difference.within]
        assert not beyond, f"{case}:\n" + "\n".join(beyond)
