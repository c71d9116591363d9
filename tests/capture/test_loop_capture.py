"""Steps of the script's own: which functions train, how their arguments travel, what is said of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.base.patch import Patches
from fdt.capture.loop.arguments import Arguments
from fdt.capture.loop.observation import Observer
from fdt.capture.loop.run import loop_lines
from fdt.capture.loop.tracing import Call, trace_step
from fdt.v1 import program_pb2

X = np.random.RandomState(0).rand(6, 3).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


class Net:
    def __init__(self) -> None:
        self.w = tf.Variable(tf.random.stateless_normal([3, 3], [1, 2]))
        self.total, self.count = tf.Variable(0.0), tf.Variable(0)

    def losses(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ self.w)


def stepping(net: Net, loss_of: Callable[[tf.Tensor], tf.Tensor], output_of: Callable[..., Any]) -> Callable[..., Any]:
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            losses = net.losses(x, y)
            loss = loss_of(losses)
        gradient = tape.gradient(loss, net.w)
        net.w.assign_sub(0.1 * gradient)
        return output_of(losses, gradient, x)

    return step


def test_arguments() -> None:
    @tf.function
    def step(*_: Any, **__: Any) -> None:
        pass

    model = object()
    arguments = Arguments.of(step, ({"x": X, "y": tf.constant(Y)}, model, 3, np.float32(0.5)), {"flag": None})
    assert arguments.num_rows == 6
    arrays = arguments.encode()
    assert [a.shape for a in arrays] == [(1, 6, 3), (1, 6), (1,)]
    (batch, *others), kwargs = arguments.form.decode([tf.constant(a) for a in arrays])
    np.testing.assert_array_equal(batch["x"], X)
    assert (others[0], others[1], float(others[2]), kwargs) == (model, 3, 0.5, {"flag": None})
    smaller = Arguments.of(step, ({"x": X[:2], "y": Y[:2]}, model, 3, np.float32(0.7)), {"flag": None})
    other = Arguments.of(step, ({"x": X, "y": Y}, model, 4, np.float32(0.5)), {"flag": None})
    assert arguments.form.key() == smaller.form.key() != other.form.key()


def test_arguments_of_all_kinds_travel_as_one_row() -> None:
    step = tf.function(lambda *_: None)
    assert Arguments.of(step, (), {}).num_rows is None
    assert [a.shape for a in Arguments.of(step, (), {}).encode()] == [(1,)]
    given = Arguments.of(step, (np.zeros((1000, 4)), np.zeros(10_000), tf.sparse.eye(5), "text"), {})
    arrays = given.encode()
    assert {len(array) for array in arrays} == {1}
    (x, y, sparse, text), _ = given.form.decode([tf.constant(array) for array in arrays])
    assert (x.shape, y.shape, text) == ((1000, 4), (10_000,), "text")
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), np.eye(5))


@pytest.mark.parametrize("asks", [False, True])
def test_a_step_that_asks_for_its_number_of_rows_is_traced_for_it(asks: bool) -> None:
    net = Net()

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net.losses(x, y)) / (
                float(x.shape[0]) if asks else tf.cast(tf.shape(x)[0], tf.float32)
            )
        net.w.assign_sub(tape.gradient(loss, net.w))
        return loss

    traced, _ = trace_step(Call(tf.function(step), (X, Y), {}), RunConfig("train.py", num_workers=2))
    assert traced.program.one_row and traced.program.one_size is asks


def test_variables_of_a_loop_have_the_roles_they_play() -> None:
    net, steps = Net(), tf.Variable(0)

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net.losses(x, y))
        net.w.assign_sub(tape.gradient(loss, net.w))
        net.total.assign_add(loss)
        net.count.assign_add(tf.shape(x)[0])
        steps.assign_add(1)

    traced, _ = trace_step(Call(tf.function(step), (X, Y), {}), RunConfig("train.py", num_workers=2))
    roles = {id(v): d.role for v, d in zip(traced.variables, traced.program.variables, strict=True)}
    assert [roles[id(v)] for v in (net.w, net.total, net.count, steps)] == [
        program_pb2.ROLE_TRAINABLE,
        program_pb2.ROLE_METRIC,
        program_pb2.ROLE_METRIC,
        program_pb2.ROLE_OPTIMIZER,
    ]


def test_which_functions_train() -> None:
    refused: list[str] = []
    observer, patches, net = Observer(refused.append), Patches(), Net()
    observer.install(patches)
    try:
        trains = tf.function(stepping(net, tf.reduce_mean, lambda *_: None))
        inner = tf.function(stepping(net, tf.reduce_mean, lambda *_: None))
        calls_it = tf.function(lambda x, y: inner(x, y))
        looks = tf.function(lambda x, y: tf.reduce_mean(net.losses(x, y)))

        @tf.function
        def counts(x: tf.Tensor) -> None:
            net.count.assign_add(1)

        @tf.function
        def in_a_branch(x: tf.Tensor, y: tf.Tensor) -> None:
            (gradient,) = tf.gradients(tf.reduce_mean(net.losses(x, y)), [net.w])
            tf.cond(tf.norm(gradient) > 1, lambda: net.w, lambda: net.w.assign_sub(gradient))

        @tf.function
        def by_an_operation(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(net.losses(x, y))
            tf.raw_ops.ResourceApplyGradientDescent(var=net.w.handle, alpha=0.1, delta=tape.gradient(loss, net.w))

        functions = (trains, calls_it, in_a_branch, by_an_operation, looks)
        graphs = [f.get_concrete_function(X, Y).graph for f in functions]
        assert [observer.trains(graph) for graph in graphs] == [True] * 4 + [False]
        assert not observer.trains(counts.get_concrete_function(X).graph)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net.losses(X, Y))
        gradient = tape.gradient(loss, net.w)
        net.count.assign_add(1)
        assert not refused
        net.w.assign_sub(gradient)
        assert len(refused) == 1
    finally:
        patches.undo()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((X, Y), "global batch 6, as in the script: 3 rows a worker"),
        ((), "the step is given no batch: every worker computes it"),
    ],
)
def test_opening_tells_who_computes(args: tuple[Any, ...], said: str) -> None:
    net = Net()

    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net.losses(*(batch or (X, Y))))
        net.w.assign_sub(tape.gradient(loss, net.w))
        return loss

    config, call = RunConfig("train.py", num_workers=2), Call(tf.function(step), args, {})
    traced, arguments = trace_step(call, config)
    assert said in loop_lines(config, traced, arguments.num_rows)[1]
