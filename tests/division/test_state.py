"""Variables that the workers hold in part, as metrics are: nothing is exchanged until somebody looks."""

import numpy as np
import pytest
import tensorflow as tf

from fdt.program.layout import Divided, shares
from tests.helpers.divided import DividedStep

_ROWS, _WORKERS = 15, 3


def _metric(total: tf.Variable, count: tf.Variable, looks: bool) -> object:
    def step(x: tf.Tensor) -> tf.Tensor:
        # As Keras 2 adds, and as Keras 3 does.
        total.assign_add(tf.reduce_sum(x))
        count.assign(count + tf.cast(tf.shape(x)[0], tf.float32))
        return total / count if looks else tf.constant(0.0)

    return tf.function(step).get_concrete_function(tf.TensorSpec((_ROWS,), tf.float32))


@pytest.mark.parametrize("looks", [False, True])
def test_what_is_added_up_in_parts_is_the_whole_sum(looks: bool) -> None:
    total, count = tf.Variable(2.0), tf.Variable(1.0)
    divided = DividedStep(
        _metric(total, count, looks), {0: Divided(0, shares(_ROWS, _WORKERS))}, _WORKERS, in_part=[total, count]
    )
    seen, x = 0.0, tf.constant(np.random.default_rng(1).normal(size=_ROWS).astype("float32"))
    for _ in range(3):
        (seen,) = divided.function(x)
    expected = 2.0 + 3 * float(tf.reduce_sum(x)), 1.0 + 3 * _ROWS
    for parts, value in zip(divided.parts.values(), expected, strict=True):
        assert float(tf.add_n([part.value() for part in parts])) == pytest.approx(value, rel=1e-6)
    assert divided.account is not None
    # Only who looks has the workers exchange anything.
    assert divided.account.exchanges == ({"sum": 2} if looks else {})
    if looks:
        assert float(seen) == pytest.approx(expected[0] / expected[1], rel=1e-5)


def test_a_variable_that_cannot_be_held_in_part_is_whole() -> None:
    kept = tf.Variable(tf.zeros(4))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        kept.scatter_nd_update([[1]], [tf.reduce_sum(x)])
        return tf.reduce_sum(kept)

    concrete = step.get_concrete_function(tf.TensorSpec((_ROWS,), tf.float32))
    divided = DividedStep(concrete, {0: Divided(0, shares(_ROWS, _WORKERS))}, _WORKERS, in_part=[kept])
    (seen,) = divided.function(tf.ones(_ROWS))
    assert float(seen) == _ROWS and kept.numpy().tolist() == [0, _ROWS, 0, 0]
