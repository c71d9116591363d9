"""Hard steps over simulated workers: the script's figures, and known what was divided."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.divided import over_workers, side_by_side
from tests.helpers.hard_steps import CLASSES, FEATURES, STEPS, Net
from tests.helpers.thorough import some_of

_NUM_STEPS = 3


_SIZES = {"15 rows over 3": (15, 3), "3 rows over 4": (3, 4), "1 row over 2": (1, 2)}
# Where a worker has no row, or all have but one, steps differ less from each other.
_EVERY = {"15 rows over 3": 1, "3 rows over 4": 2, "1 row over 2": 4}


@pytest.mark.parametrize(
    ("name", "size"),
    some_of(
        itertools.product(STEPS, _SIZES),
        [(name, size) for size, every in _EVERY.items() for name in list(STEPS)[::every]],
    ),
)
def test_a_step_gives_what_it_gives_undivided(name: str, size: str) -> None:
    rows, workers = _SIZES[size]
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


def test_a_function_that_is_called_by_its_own_name_is_a_call() -> None:
    """Functions of TensorFlow 1 (`Defun`) are called so, those within them too: `tf.nn.ctc_loss` is made of them."""
    random = np.random.default_rng(5)
    weights = tf.Variable(random.normal(size=(3, 4)).astype("float32"))

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            lengths = tf.fill([6], 8), tf.fill([6], 2)
            losses = tf.nn.ctc_loss(y, x @ weights, *lengths[::-1], logits_time_major=False, blank_index=-1)
            loss = tf.reduce_mean(losses)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    specs = tf.TensorSpec((6, 8, 3), tf.float32), tf.TensorSpec((6, 2), tf.int64)
    whole = tf.function(step).get_concrete_function(*specs)
    batch = tf.constant(random.normal(size=(6, 8, 3)).astype("float32")), tf.constant(random.integers(0, 3, (6, 2)))
    divided = over_workers(whole, 6, 2, num_arguments=2)
    outputs, variables = side_by_side(
        lambda: [whole(*batch).numpy()], lambda: [divided.function(*batch)[0].numpy()], [weights]
    )
    assert outputs <= 1e-5 and variables <= 1e-5
