"""Random numbers of a traced step are those that eager operations draw, bit for bit."""

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from fdt.base.patch import Patches
from fdt.capture.step import random_states, seeds


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

    random_states.install(patches)
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


def test_a_step_of_any_number_of_rows_draws_what_its_stateful_operations_would() -> None:
    def draw(rows: tf.Tensor) -> list[tf.Tensor]:
        drawn = [
            tf.random.normal([rows, 3]),
            tf.random.uniform([rows], -1.0, 3.0, seed=4),
            tf.random.uniform([2, rows], 0, 9, tf.int64),
            tf.random.truncated_normal([rows], dtype=tf.float64),
            tf.random.normal([rows], dtype=tf.float16),
            tf.nn.dropout(tf.ones([rows, 5]), 0.5),
        ]
        looped = tf.while_loop(
            lambda i, _: i < 2, lambda i, x: (i + 1, x + tf.random.normal([rows])), (0, tf.zeros([rows]))
        )
        return [*drawn, tf.cond(rows > 4, lambda: tf.random.normal([rows]), lambda: tf.zeros([rows])), looped[1]]

    def traced() -> Any:
        tf.random.set_seed(3)
        return tf.function(draw, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int32))

    patches, states = Patches(), list[tf.Variable]()
    plain = traced()
    random_states.keep_in_variables(patches, states.append)
    try:
        ours = traced()
    finally:
        patches.undo()
    assert len(states) == 8
    sizes = [20, 20, 7, 1, 4, 20]
    for size in sizes:
        for place, (expected, drawn) in enumerate(zip(plain(size), ours(size), strict=True)):
            assert bool(tf.reduce_all(expected == drawn)), (size, place)
    assert states[0].numpy()[1] == 3 * sum(sizes)


def test_without_a_seed_a_step_draws_others_each_time() -> None:
    patches, states = Patches(), list[tf.Variable]()
    context.set_global_seed(None)
    random_states.keep_in_variables(patches, states.append)
    try:
        steps = [tf.function(lambda: tf.random.normal([9])).get_concrete_function() for _ in range(2)]
    finally:
        patches.undo()
    drawn = [step().numpy().tolist() for step in (*steps, *steps)]
    assert len(set(map(tuple, drawn))) == 4


def test_operations_with_a_seed_of_their_own_count_together() -> None:
    """Those of a kind and a seed: before the steps, in them, between them, and after the global seed is set again."""

    def drawn() -> list[tf.Tensor]:
        return [
            tf.random.normal([3], seed=7),
            tf.random.normal([2, 2], seed=7),
            tf.random.normal([3], seed=8),
            tf.random.normal([3], dtype=tf.float64, seed=7),
            tf.random.truncated_normal([5], seed=7),
            tf.random.uniform([3], seed=7),
            tf.random.uniform([3], 0, 1 << 30, tf.int32, seed=7),
            tf.random.uniform([3], 0, 1 << 30, tf.int64, seed=7),
            tf.nn.dropout(tf.ones([30]), 0.5, seed=7),
        ]

    def step() -> list[tf.Tensor]:
        with seeds.Seeds(()).taken():
            return drawn()

    def run(step: Any) -> list[Any]:
        made: list[Any] = []
        for seed in (5, 5, None, 6):
            tf.random.set_seed(seed)
            made += [drawn(), step(), step(), drawn(), step()]
        return made

    plain, patches = run(drawn), Patches()
    random_states.install(patches)
    try:
        ours = run(tf.function(step, autograph=False))
    finally:
        patches.undo()
    for one, other in zip(plain, ours, strict=True):
        for expected, found in zip(one, other, strict=True):
            assert bool(tf.reduce_all(expected == found))
