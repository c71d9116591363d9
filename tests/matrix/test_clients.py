"""Clients on other versions of TensorFlow and Python train on this pool as they train by themselves.

Each gets an environment of its own with the client's packages only, which takes minutes: `make test-matrix` runs this, `make
test` does not.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pool import Pool, serve
from tests.helpers.registry import registry, unjudged
from tests.matrix.environments import VERSIONS, check_cases, make, needs_uv

pytestmark = needs_uv
CASES = (
    "adam conv last_batch_3 reduction_sum sample_weight masked_gru sparse_embedding custom_train_step gan second_fit "
    "data_dataset_shuffled data_dataset_mapped data_generator data_ragged data_strings data_on_batch keras_callbacks "
    "loss_contrastive one_size_written_out data_of_two_sizes "
    "loop_metrics loop_returns loop_by_hand loop_checkpoint loop_static loop_over_data loop_printed loop_contrastive "
    "session_feed session_data_set"
)
KERAS_2 = "adam reduction_sum sparse_embedding custom_train_step data_dataset_shuffled loop_metrics older_adam newer_loss_scale"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with serve(tmp_path_factory.mktemp("pool")) as running:
        yield running


@pytest.fixture(scope="module", params=VERSIONS, ids=str)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment with that TensorFlow and the client."""
    return make(tmp_path_factory.mktemp("client") / "venv", request.param)


def test_every_operation_is_judged(client: Path) -> None:
    """What that TensorFlow's programs may hold is judged as it has it."""
    found = registry(client)
    assert len(found) > 1800
    assert unjudged(found) == []


def test_trains_as_by_itself(client: Path, pool: Pool, tmp_path: Path) -> None:
    check_cases(client, CASES, pool, tmp_path, "--workers", "2")


@pytest.mark.parametrize("client", [v for v in VERSIONS if v.has_keras_2], ids=str, indirect=True)
def test_trains_with_keras_2(client: Path, pool: Pool, tmp_path: Path) -> None:
    check_cases(client, KERAS_2, pool, tmp_path, "--workers", "2", TF_USE_LEGACY_KERAS="1")
