"""Hard steps over simulated workers: the script's figures, and known what was divided."""

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.divided import over_workers, side_by_side
from tests.helpers.hard_steps import CLASSES, FEATURES, STEPS, Net

_NUM_STEPS = 3


@pytest.mark.parametrize(
    "rows, workers", [(15, 3), (3, 4), (1, 2)], ids=["15 rows over 3", "3 rows over 4", "1 row over 2"]
)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_what_it_gives_undivided(name: str, rows: int, workers: int) -> None:
    net, random = Net(), np.random.default_rng(3)
    specs = tf.TensorSpec((rows, FEATURES), tf.float32), tf.TensorSpec((rows,), tf.int64)
    whole = tf.function(lambda x, y: STEPS[name].step(net, x, y)).get_concrete_function(*specs)
    batches = [
        (
            tf.constant(random.normal(size=(rows, FEATURES)).astype("float32")),
            tf.constant(random.integers(0, CLASSES, rows)),
        )
        for _ in range(_NUM_STEPS)
    ]
    divided = over_workers(whole, rows, workers, num_arguments=2)
    outputs, variables = side_by_side(
        lambda: [whole(*batch).numpy() for batch in batches],
        lambda: [divided.function(*batch)[0].numpy() for batch in batches],
        net.variables,
    )
    assert outputs <= 1e-5 and variables <= 1e-5
    assert divided.account is not None
    if rows > 3:  # a single row's product of matrices is divided along the result
        assert divided.account.computed_whole == {op: count for op, count in STEPS[name].whole.items() if count}
