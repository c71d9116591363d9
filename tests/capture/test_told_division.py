"""What `fdt check` tells of how a step would be divided."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.loop.tracing import Call, trace_step
from fdt.capture.step.divided import divided_lines

_WORDS, _LABELS = np.ones((8, 5), np.int64), np.ones((8, 1), np.float32)


@pytest.mark.parametrize(
    ("of_words", "length", "told"),
    [
        (lambda x: x, None, ["a batch of other sizes is divided once more, for all sizes that come"]),
        (
            lambda x: tf.linalg.diag_part(tf.linalg.diag(x)),
            None,
            ["a batch of other sizes is divided anew for each, since the number is needed by: MatrixDiagV3"],
        ),
        (lambda x: x, 5, []),
    ],
    ids=["any size", "operations without a function", "one size"],
)
def test_it_tells_how_often_batches_of_other_sizes_are_divided(
    of_words: Callable[[tf.Tensor], tf.Tensor], length: int | None, told: list[str]
) -> None:
    table, weight = tf.Variable(tf.ones([9, 4])), tf.Variable(tf.ones([4, 1]))

    @tf.function(input_signature=[tf.TensorSpec([None, length], tf.int64), tf.TensorSpec([None, 1])])
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            words = of_words(tf.gather(table, x))
            loss = tf.reduce_mean((tf.reduce_mean(words, 1) @ weight - y) ** 2)
        for variable, gradient in zip((table, weight), tape.gradient(loss, [table, weight]), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    config = RunConfig("train.py", num_workers=2)
    traced, _ = trace_step(Call(step, (_WORDS, _LABELS), {}), config)
    # A loop's arguments travel as one row that holds everything.
    lines = divided_lines(traced, [(1, *_WORDS.shape), (1, *_LABELS.shape)], config)
    found = [line for line in lines if "other sizes" in line]
    assert [line[: len(expected)] for line, expected in zip(found, told, strict=True)] == told
