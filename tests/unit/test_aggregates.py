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
    """Holes that bring together what this worker has with what the workers before and after it have."""

    def __init__(self, share: tf.Tensor, before: list[list[np.ndarray]], after: list[list[np.ndarray]]):
        super().__init__(share)
        self._before, self._after = before, after
        self.exchanged: list[tf.Tensor] = []

    def _others(self, workers: list[list[np.ndarray]]) -> list[np.ndarray]:
        return [has[len(self.exchanged) - 1] for has in workers]

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        self.exchanged.append(tensor)
        return tf.add_n([tf.stop_gradient(tensor), *self._others(self._before), *self._others(self._after)])

    def rows(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        self.exchanged.append(tensor)
        before = self._others(self._before)
        rows = tf.concat([*before, tf.stop_gradient(tensor), *self._others(self._after)], 0)
        hidden = tf.compat.v1.placeholder_with_default(rows, tf.TensorShape([None]).concatenate(tensor.shape[1:]))
        return hidden, tf.constant(sum(map(len, before)))


def on_workers(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], sizes: list[int]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the number that each worker has for its rows, and the sum of their gradients by the weights."""

    def run(rows: np.ndarray, before: list[list[np.ndarray]], after: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        @tf.function(autograph=False)
        def step(x: tf.Tensor, share: tf.Tensor, w: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
            holes = Workers(share, before, after)
            with tf.GradientTape() as tape:
                tape.watch(w)
                found = aggregate(function(x, w), Reader({x.op.name}, share))
                assert found is not None
                number = found.whole(holes).differentiable()
                weighted = number * share
            return holes.exchanged, number, tape.gradient(weighted, w)

        specs = tf.TensorSpec([None, 3]), tf.TensorSpec([]), tf.TensorSpec([3])
        share = np.float32(len(rows) / len(ROWS))
        results = step.get_concrete_function(*specs)(tf.constant(rows), tf.constant(share), tf.constant(WEIGHTS))
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), results)  # type: ignore[no-any-return]

    pieces = np.split(ROWS, np.cumsum(sizes)[:-1])
    parts = [run(piece, [], [])[0] for piece in pieces]
    numbers, total = [], np.zeros(3, "float32")
    for i, piece in enumerate(pieces):
        _, number, gradient = run(piece, parts[:i], parts[i + 1 :])
        numbers.append(number)
        total += gradient
    return numbers, total


def similarities(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    z = tf.math.l2_normalize(x * w, 1)
    return z @ tf.transpose(z)


def nt_xent(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Chen et al. 2020, of the rows and the same rows turned round."""
    z = tf.concat([tf.math.l2_normalize(x * w, 1), tf.math.l2_normalize(x[:, ::-1] * w, 1)], 0)
    num_rows = tf.shape(x)[0]
    logits = z @ tf.transpose(z) / 0.5 - 1e9 * tf.eye(2 * num_rows)
    others = (tf.range(2 * num_rows) + num_rows) % (2 * num_rows)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(others, logits))


def barlow_twins(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    """Zbontar et al. 2021: of normalised columns."""
    y = tf.tanh(x * w)
    z = (y - tf.reduce_mean(y, 0)) / tf.math.reduce_std(y, 0)
    c = tf.transpose(z) @ z[:, ::-1] / tf.cast(tf.shape(z)[0], tf.float32)
    return tf.reduce_sum(tf.square(c - tf.eye(3)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: tf.sqrt(tf.reduce_mean(tf.square(x * w))),
        lambda x, w: 1.0 - (2.0 * tf.reduce_sum(x * w) + 1.0) / (tf.reduce_sum(x) + tf.reduce_sum(tf.exp(w * x)) + 1.0),
        lambda x, w: tf.reduce_sum(tf.math.log(tf.reduce_mean(x * w, axis=0))),
        lambda x, w: tf.sqrt(tf.reduce_sum(x * w)) * tf.reduce_mean(x) + tf.reduce_sum(tf.square(w)),
        lambda x, w: tf.square(tf.reduce_sum(x * w) / tf.cast(tf.size(x) + tf.shape(x)[0], tf.float32)),
        # A sum beside something that is none.
        lambda x, w: tf.reduce_sum(tf.square(x * w)) + 0.1 * tf.reduce_sum(tf.square(w)),
        lambda x, w: tf.reduce_max(x * w),
        lambda x, w: tf.sqrt(tf.reduce_sum(x * w)) + tf.reduce_max(x * w, 0)[1],
        # Rows that the mean of all has entered.
        lambda x, w: tf.sqrt(tf.reduce_sum(tf.square(x * w - tf.reduce_mean(x)))),
        lambda x, w: tf.reduce_mean(tf.boolean_mask(tf.square(x * w), x > 1.0)),
        lambda x, w: tf.reduce_mean(tf.square(x[:, 0] - (x * w)[:, :1])),
        lambda x, w: tf.reduce_mean(tf.linalg.diag_part(similarities(x, w)) - similarities(x, w)[0]),
        lambda x, w: tf.reduce_mean(tf.where(tf.eye(tf.shape(x)[0]) > 0, 0.0, tf.exp(similarities(x, w)))),
        lambda x, w: tf.reduce_mean(tf.math.top_k(tf.reduce_sum(x * w, 1), 1).values),
        lambda x, w: tf.reduce_mean(tf.square(x * w)) + tf.reduce_mean(similarities(x, w)),
        lambda x, w: tf.cond(tf.reduce_mean(x) > 1.0, lambda: tf.reduce_mean(x * w), lambda: tf.reduce_max(x * w)),
        nt_xent,
        barlow_twins,
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


@tf.custom_gradient
def straight_through(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return tf.round(x), lambda upstream: upstream


KERNEL = tf.Variable(tf.eye(3))


@pytest.mark.parametrize(
    "function",
    [
        # Other numbers would be drawn.
        lambda x: tf.reduce_max(x * tf.random.shuffle(x)),
        # A layer behind rows that have met.
        lambda x: tf.reduce_mean(tf.square((x[::-1] + x) @ KERNEL)),
        # The gradient is the script's own.
        lambda x: tf.reduce_max(straight_through(x - tf.reduce_mean(x, 0))),
        lambda x: tf.while_loop(lambda v: v < 9.0, lambda v: v + 1.0, [tf.reduce_max(x)])[0],
    ],
)
def test_others_are_left_alone(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor, share: tf.Tensor) -> None:
        assert aggregate(function(x), Reader({x.op.name}, share)) is None

    step.get_concrete_function(tf.TensorSpec([None, 3]), tf.TensorSpec([]))
