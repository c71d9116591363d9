"""What a step does that finds no more data: all that stands on none, as TensorFlow has done by then."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.step.without_data import WithoutData
from fdt.program.element import Element
from tests.helpers.programs import step_trace

ROWS = tf.TensorSpec([None, 3])


class Net(keras.Model):
    """A step that counts for itself beside what Keras counts; weights decay before gradients are applied."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.error = keras.layers.Dense(1), keras.metrics.Mean()
        self.calls = keras.Variable(0, dtype="int32", trainable=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.out(x)

    def train_step(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        self.calls.assign_add(1)
        with tf.GradientTape() as tape:
            errors = tf.square(self(x)[:, 0])
            loss = tf.reduce_mean(errors)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        # By rows.
        self.error.update_state(errors)
        return {"loss": loss}


@pytest.mark.parametrize("rows", [None, 10])
def test_a_step_without_data_does_what_stands_on_none(rows: int | None) -> None:
    net = Net()
    net(np.ones((2, 3), np.float32))
    net.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5))
    net.optimizer.build(net.trainable_weights)
    element = Element([ROWS], list, lambda _, leaves: leaves[0])
    traced = step_trace(RunConfig("train.py")).trace(net.train_step, element)
    before = {v.path: v.numpy() for v in (*net.variables, *net.optimizer.variables)}
    traced.run_out(element.specs_of_rows(rows))
    after = {v.path: v.numpy() for v in (*net.variables, *net.optimizer.variables)}
    changed = {path for path in before if not np.array_equal(before[path], after[path])}

    counts = [path for path in before if path.endswith("count")]
    assert changed == {net.calls.path, net.out.kernel.path, net.optimizer.iterations.path, *(counts if rows else ())}
    np.testing.assert_allclose(after[net.out.kernel.path], 0.95 * before[net.out.kernel.path], rtol=1e-6)
    assert (int(net.calls), int(net.optimizer.iterations), float(net.error.count)) == (1, 1, rows or 0)
    # The data set of another epoch finds its end again.
    traced.run_out(element.specs_of_rows(rows))
    assert int(net.calls) == 2


def test_a_step_that_needs_data_for_all_does_nothing() -> None:
    variable = tf.Variable([1.0])

    @tf.function
    def step(share: tf.Tensor, batch: tf.Tensor) -> None:
        variable.assign_add(share * tf.reduce_sum(batch, keepdims=True))

    graph = step.get_concrete_function(tf.TensorSpec([]), tf.TensorSpec([None])).graph
    WithoutData(graph, [variable])()
    assert variable.numpy() == [1.0]
