"""A number that is computed from sums over rows is known from the sums over all workers, and its gradient from their slopes."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from fdt.capture.step.aggregates import aggregate
from fdt.capture.step.reductions import Reader
from fdt.holes import Holes

ROWS = np.random.RandomState(0).uniform(0.2, 2.0, [7, 3]).astype("float32")
WEIGHTS = np.array([1.0, 2.0, 3.0], "float32")


class Workers(Holes):
    """Holes that add what the other workers have, given as a function of the same tensors."""

    def __init__(self, share: tf.Tensor, others: list[tf.Tensor]):
        super().__init__(share)
        self._others = iter(others)
        self.summed: list[tf.Tensor] = []

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        self.summed.append(tensor)
        return tf.stop_gradient(tensor) + next(self._others, tf.zeros([]))


def on_workers(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], sizes: list[int]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the number that each worker has for its rows, and the sum of their gradients by the weights."""
    parts: list[list[np.ndarray]] = []

    def run(rows: np.ndarray, others: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        @tf.function(autograph=False)
        def step(x: tf.Tensor, share: tf.Tensor, w: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
            holes = Workers(share, [tf.constant(other) for other in others])
            with tf.GradientTape() as tape:
                tape.watch(w)
                found = aggregate(function(x, w), Reader({x.op.name}, share))
                assert found is not None
                number = found.whole(holes).differentiable()
                weighted = number * share
            return holes.summed, number, tape.gradient(weighted, w)

        specs = tf.TensorSpec([None, 3]), tf.TensorSpec([]), tf.TensorSpec([3])
        share = np.float32(len(rows) / len(ROWS))
        summed, number, gradient = step.get_concrete_function(*specs)(
            tf.constant(rows), tf.constant(share), tf.constant(WEIGHTS)
        )
        return [t.numpy() for t in summed], number.numpy(), gradient.numpy()

    pieces = np.split(ROWS, np.cumsum(sizes)[:-1])
    parts = [run(piece, [])[0] for piece in pieces]
    numbers, total = [], np.zeros(3, "float32")
    for i, piece in enumerate(pieces):
        others = [np.sum([p[k] for j, p in enumerate(parts) if j != i], axis=0) for k in range(len(parts[i]))]
        _, number, gradient = run(piece, others)
        numbers.append(number)
        total += gradient
    return numbers, total


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: tf.sqrt(tf.reduce_mean(tf.square(x * w))),
        lambda x, w: 1.0 - (2.0 * tf.reduce_sum(x * w) + 1.0) / (tf.reduce_sum(x) + tf.reduce_sum(tf.exp(w * x)) + 1.0),
        lambda x, w: tf.reduce_sum(tf.math.log(tf.reduce_mean(x * w, axis=0))),
        lambda x, w: tf.sqrt(tf.reduce_sum(x * w)) * tf.reduce_mean(x) + tf.reduce_sum(tf.square(w)),
        lambda x, w: tf.square(tf.reduce_sum(x * w) / tf.cast(tf.size(x) + tf.shape(x)[0], tf.float32)),
    ],
)
def test_workers_agree_with_one_machine(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> None:
    w = tf.constant(WEIGHTS)
    with tf.GradientTape() as tape:
        tape.watch(w)
        expected = function(tf.constant(ROWS), w)
    numbers, gradient = on_workers(function, [4, 2, 1])
    np.testing.assert_allclose(numbers, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, tape.gradient(expected, w), rtol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.reduce_max(x),
        lambda x: tf.sqrt(tf.reduce_sum(x)) + tf.reduce_max(x),
        # Rows that the mean of all has entered.
        lambda x: tf.sqrt(tf.reduce_sum(tf.square(x - tf.reduce_mean(x)))),
    ],
)
def test_others_are_left_alone(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor, share: tf.Tensor) -> None:
        assert aggregate(function(x), Reader({x.op.name}, share)) is None

    step.get_concrete_function(tf.TensorSpec([None, 3]), tf.TensorSpec([]))
