"""Random numbers of a traced step are those that eager operations draw, bit for bit."""

import tensorflow as tf

from fdt.capture.step import seeds
from fdt.patch import Patches


def _step() -> list[tf.Tensor]:
    return [
        tf.random.normal([700, 3]),
        tf.random.uniform([1000], -1.0, 3.0),
        tf.random.uniform([100], 0, 9, tf.int64),
        tf.random.shuffle(tf.range(4)),
        tf.random.truncated_normal([50], dtype=tf.float64),
        tf.nn.dropout(tf.ones([40]), 0.5),
    ]


def test_a_step_draws_what_its_eager_operations_would() -> None:
    patches, count = Patches(), 6

    def step(*given: tf.Tensor) -> list[tf.Tensor]:
        own = seeds.Seeds(given)
        with own.taken():
            drawn = _step()
        assert own.count == count
        return drawn

    seeds.install(patches)
    try:
        traced = tf.function(step, autograph=False)
        for first in (5, 0):
            tf.random.set_seed(first)
            eager = [_step() for _ in range(3)]
            after = tf.random.normal([])
            tf.random.set_seed(first)
            outlined = [traced(*seeds.drawn(count)) for _ in range(3)]
            assert float(tf.random.normal([])) == float(after)
            for place in (0, 1, 2, 4, 5):
                for ours, plain in zip(outlined, eager, strict=True):
                    assert bool(tf.reduce_all(ours[place] == plain[place])), place
            # Another in each step.
            assert not bool(tf.reduce_all(outlined[0][0] == outlined[1][0]))
    finally:
        patches.undo()
