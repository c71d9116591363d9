"""How a graph of TensorFlow 1 is cut into what stands before a step, before its gradients, and after them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.capture.behaviour import as_tensorflow_2
from fdt.capture.session.step import Closure, Gradients, beneath_summaries, step_function
from fdt.errors import UnsupportedError

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as graph:
        yield graph


def differentiated(loss: tf.Tensor, *variables: Any) -> Gradients:
    gradients = tf.gradients(loss, list(variables))
    return Gradients({v.handle.op.name: g for v, g in zip(variables, gradients, strict=True)})


def variable(name: str = "w") -> Any:
    return v1.get_variable(name, [3], initializer=v1.ones_initializer())


def test_what_only_assigns_does_not_train() -> None:
    w = variable()
    calls = [differentiated(tf.reduce_sum(w * w), w)]
    assert not Closure([], [w.assign(w * 2.0).op], []).last_gradients(calls)
    assert not Closure([tf.reduce_sum(w)], [], []).last_gradients(calls)
    assert not Closure([next(iter(calls[0].of.values()))], [], []).last_gradients(calls)


def test_of_gradients_of_gradients_the_last_are_exchanged() -> None:
    w = variable()
    inner = differentiated(tf.reduce_sum(w * w * w), w)
    outer = differentiated(tf.reduce_sum(tf.square(inner.of[w.handle.op.name])), w)
    update = w.assign_sub(0.1 * outer.of[w.handle.op.name])
    assert Closure([], [update.op], []).last_gradients([inner, outer]) == [outer]


def test_an_iterators_batch_is_computed_before_the_step() -> None:
    batch = v1.data.make_initializable_iterator(tf.data.Dataset.range(3)).get_next()
    w = variable()
    loss = tf.reduce_sum(w * tf.cast(batch, tf.float32))
    closure = Closure([loss], [], [])
    assert [tensor.name for tensor in closure.local] == [batch.name]
    assert "IteratorV2" not in {operation.type for operation in closure.operations.values()}


def test_the_step_computes_what_the_session_does(graph: Any) -> None:
    """With an exchange that doubles gradients: what follows them sees what came out, the loss what went in."""
    x, w = v1.placeholder(tf.float32, [None, 3]), variable()
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, 1)))
    call = differentiated(loss, w)
    gradient = call.of[w.handle.op.name]
    update = v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
    norm = tf.norm(gradient)
    read = w.read_value()
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        plain = session.run([loss, norm, read], {x: rows})
    closure = Closure([loss, norm, read], [update], [x.name])
    with as_tensorflow_2():
        stand_in = tf.Variable(tf.ones([3]))
        step = step_function(
            graph,
            closure,
            [x],
            [loss, norm, read],
            closure.last_gradients([call]),
            {w.handle.op.name: stand_in},
            lambda gradients, variables: [2.0 * gradient for gradient in gradients],
        )
        outputs = tf.function(step, autograph=False)(tf.constant(rows))
        assert [float(outputs[0]), float(outputs[1])] == pytest.approx([plain[0], 2 * plain[1]])
        assert np.array_equal(outputs[2], plain[2]), "a read that waits for nothing comes before the update"
        residual = rows.sum(1)
        expected = 1.0 - 0.1 * 2.0 * (residual[:, None] * rows).mean(0) * 2.0
        assert stand_in.numpy() == pytest.approx(expected, rel=1e-5)


def test_summaries_are_taken_apart() -> None:
    w = variable()
    loss = tf.reduce_sum(w)
    merged = v1.summary.merge([v1.summary.scalar("loss", loss), v1.summary.histogram("w", w)])
    returned, summaries = beneath_summaries([loss, merged])
    assert summaries == [merged]
    assert returned[0] is loss and {tensor.op.type for tensor in returned[1:]} == {"ReadVariableOp"}


def test_variables_of_the_old_kind_are_refused(graph: Any) -> None:
    w = v1.get_variable("old", [3], use_resource=False)
    closure = Closure([tf.reduce_sum(w)], [], [])
    with pytest.raises(UnsupportedError, match="'old' is of TensorFlow 1's old kind"):
        step_function(graph, closure, [], [], [], {}, lambda gradients, variables: gradients)
