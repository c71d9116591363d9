"""A mean over rows, a sum over them, and what is neither are told apart by the graph."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from fdt.capture.step.reductions import Reduced, reduced, together

ROWS = tf.TensorSpec([None, 3])
W = tf.constant([1.0, 2.0, 3.0])


def kind(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], spec: tf.TensorSpec = ROWS) -> Reduced:
    """Returns how function(x, share) follows x."""
    found: list[Reduced] = []

    @tf.function(autograph=False)
    def step(x: tf.Tensor, share: tf.Tensor) -> None:
        found.append(reduced(function(x, share), {x.op.name}, share).kind)

    step.get_concrete_function(spec, tf.TensorSpec([]))
    return found[-1]


def number_of_rows(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(x)[0], tf.float32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, share: tf.reduce_mean(x), Reduced.MEAN),
        (lambda x, share: 0.5 * tf.reduce_sum(tf.square(x)), Reduced.SUM),
        (lambda x, share: tf.reduce_sum(tf.nn.relu(x @ W[:, None])) / 64.0, Reduced.SUM),
        (lambda x, share: tf.reduce_mean(tf.reduce_sum(x, 1)), Reduced.MEAN),
        (lambda x, share: tf.reduce_sum(tf.reduce_mean(x, -1)), Reduced.SUM),
        (lambda x, share: tf.reduce_sum(tf.reduce_mean(x, 0)), Reduced.MEAN),
        (lambda x, share: tf.reduce_sum(x) / number_of_rows(x), Reduced.MEAN),
        (lambda x, share: tf.reduce_sum(x) / tf.where(share > 0, share, 1.0), Reduced.MEAN),
        (lambda x, share: tf.reduce_mean(x) + tf.reduce_sum(W), Reduced.MEAN),
        (lambda x, share: tf.add_n([tf.reduce_sum(x), tf.reduce_sum(x * x)]), Reduced.SUM),
        (lambda x, share: tf.reduce_sum(x) + tf.reduce_sum(W), Reduced.MIXED),
        (lambda x, share: tf.reduce_sum(x) + tf.reduce_mean(x), Reduced.MIXED),
        (lambda x, share: tf.reduce_sum(W), Reduced.SAME),
        (lambda x, share: 2.0 * tf.reduce_sum(x) / tf.reduce_sum(x * x), Reduced.RATIO),
        (
            lambda x, share: tf.math.divide_no_nan(tf.reduce_sum(x), tf.maximum(tf.reduce_sum(x * x), 1.0)),
            Reduced.RATIO,
        ),
        (lambda x, share: tf.reduce_mean(x) / tf.reduce_mean(x * x), Reduced.RATIO),
        # What follows the rows in a way of its own is left alone.
        (lambda x, share: tf.reduce_sum(x) / (tf.reduce_sum(x * x) + tf.reduce_mean(x)), Reduced.UNKNOWN),
        (lambda x, share: tf.reduce_sum(x) / tf.reduce_mean(x * x), Reduced.UNKNOWN),
        (lambda x, share: tf.reduce_sum(x) / tf.reduce_sum(x * x) + tf.reduce_mean(x), Reduced.UNKNOWN),
        (lambda x, share: tf.sqrt(tf.reduce_sum(x)), Reduced.UNKNOWN),
        (lambda x, share: tf.reduce_mean(tf.reduce_sum(tf.transpose(x), 0)), Reduced.UNKNOWN),
        (lambda x, share: tf.reduce_sum(tf.nn.relu(tf.transpose(x)), 0)[0], Reduced.UNKNOWN),
        (lambda x, share: tf.reduce_max(x), Reduced.UNKNOWN),
        (lambda x, share: tf.reduce_mean(x) * tf.reduce_sum(x), Reduced.UNKNOWN),
    ],
)
def test_a_number_is_told(function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], expected: Reduced) -> None:
    assert kind(function) is expected


def test_a_batch_of_fixed_size_shows_nothing() -> None:
    assert kind(lambda x, share: tf.reduce_sum(x), tf.TensorSpec([4, 3])) is Reduced.UNKNOWN


def test_a_branch_shows_nothing() -> None:
    inside: list[Reduced] = []

    @tf.function(autograph=False)
    def step(x: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        def branch() -> tf.Tensor:
            loss = tf.reduce_sum(x)
            inside.append(reduced(loss, {x.op.name}, share).kind)
            return loss

        return tf.cond(share > 0, branch, lambda: 0.0)

    step.get_concrete_function(ROWS, tf.TensorSpec([]))
    assert set(inside) == {Reduced.UNKNOWN}


def test_hundreds_of_terms_do_not_end_it() -> None:
    assert kind(lambda x, share: sum([tf.reduce_sum(x * i) for i in range(800)], tf.constant(0.0))) in (
        Reduced.UNKNOWN,
        Reduced.MIXED,
        Reduced.SUM,
    )


def test_parts_of_a_loss() -> None:
    assert together([Reduced.SUM, Reduced.SUM]) is Reduced.SUM
    assert together([Reduced.SAME]) is Reduced.SAME
    assert together([Reduced.RATIO]) is Reduced.RATIO
    assert together([Reduced.RATIO, Reduced.RATIO]) is Reduced.UNKNOWN, "each has a divisor of its own"
    assert together([Reduced.RATIO, Reduced.SAME]) is Reduced.UNKNOWN
    assert together([Reduced.MEAN, Reduced.UNKNOWN]) is Reduced.UNKNOWN
