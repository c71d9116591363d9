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

UV = os.environ.get("FDT_UV", "")
pytestmark = pytest.mark.skipif(not UV, reason="installs other TensorFlows; `make test-matrix` runs it")

ROOT = Path(__file__).parents[2]
# Those that there are wheels for; the pool has 2.18 on the Python that runs this.
VERSIONS = list(itertools.product(("2.16.2", "2.18.1", "2.21.0"), ("3.11", "3.12")))
CASES = (
    "adam conv last_batch_3 reduction_sum sample_weight masked_gru sparse_embedding custom_train_step gan second_fit "
    "data_dataset_shuffled data_generator data_ragged data_strings data_on_batch keras_callbacks "
    "loop_metrics loop_returns loop_by_hand loop_checkpoint loop_static session_feed session_data_set"
)
KERAS_2 = "adam reduction_sum sparse_embedding custom_train_step data_dataset_shuffled loop_metrics older_adam newer_loss_scale"
LIMIT_S = 900.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with serve(tmp_path_factory.mktemp("pool")) as running:
        yield running


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"tensorflow {version[0]}, python {version[1]}")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment with that TensorFlow and the client."""
    tensorflow, python = request.param
    environment = tmp_path_factory.mktemp("client") / "venv"
    if subprocess.run([UV, "python", "find", python], capture_output=True, check=False, timeout=LIMIT_S).returncode:
        pytest.skip(f"there is no Python {python} on this machine")
    subprocess.run([UV, "venv", "--quiet", "--python", python, environment], check=True, timeout=LIMIT_S)
    keras_2 = f"tf_keras=={tensorflow.rsplit('.', 1)[0]}.*"
    packages = [f"tensorflow=={tensorflow}", keras_2, "scikit-learn", "scipy", "pandas", "-e", str(ROOT)]
    install = [UV, "pip", "install", "--quiet", "--python", environment / "bin" / "python", *packages]
    subprocess.run(install, check=True, timeout=LIMIT_S)
    return environment / "bin" / "python"


@pytest.mark.parametrize(("cases", "environ"), [(CASES, {}), (KERAS_2, {"TF_USE_LEGACY_KERAS": "1"})], ids=["3", "2"])
def test_trains_as_by_itself(client: Path, cases: str, environ: dict[str, str], pool: Pool, tmp_path: Path) -> None:
    """With Keras 3, and with Keras 2."""
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
