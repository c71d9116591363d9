"""Steps of the script's own: which functions train, what of their arguments is divided, how their outcome is put together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fdt.capture.loop.divided_step import Call, trace_step
from fdt.capture.loop.division import Division, Over, divide
from fdt.capture.step.trial_holes import IndivisibleError

from fdt.capture.loop.arguments import Arguments, Travel
from fdt.capture.loop.observation import Observer
from fdt.capture.loop.run import loop_lines
from fdt.capture.loop.tracing import LoopTrace
from fdt.capture.patch import Patches
from fdt.config import RunConfig
from protos import program_pb2

X = np.random.RandomState(0).rand(6, 3).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


class Net:
    def __init__(self) -> None:
        self.w = tf.Variable(tf.random.stateless_normal([3, 3], [1, 2]))
        self.total, self.count = tf.Variable(0.0), tf.Variable(0)

    def losses(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ self.w)


def divided(step: Callable[..., Any], *args: Any) -> Division:
    function = tf.function(step)
    arguments = Arguments(function, args, {})
    trial = LoopTrace().trial(function, arguments.form)
    return divide(trial, trial, arguments)


def stepping(net: Net, loss_of: Callable[[tf.Tensor], tf.Tensor], output_of: Callable[..., Any]) -> Callable[..., Any]:
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            losses = net.losses(x, y)
            loss = loss_of(losses)
        gradient = tape.gradient(loss, net.w)
        net.w.assign_sub(0.1 * gradient)
        return output_of(losses, gradient, x)

    return step


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [(tf.reduce_mean, Over.MEAN), (tf.reduce_sum, Over.SUM), (lambda v: tf.reduce_sum(v) / 6.0, Over.SUM)],
)
def test_gradients_of_a_mean_and_of_a_sum(loss_of: Callable[[tf.Tensor], tf.Tensor], expected: Over) -> None:
    net = Net()
    before = net.w.numpy().copy()
    assert divided(stepping(net, loss_of, lambda *_: None), X, Y).gradients == [expected]
    np.testing.assert_array_equal(net.w.numpy(), before)


@pytest.mark.parametrize(
    ("loss_of", "expected"), [(tf.reduce_mean, Over.MEAN), (lambda v: tf.reduce_sum(v) / 40.0, Over.SUM)]
)
@pytest.mark.parametrize("seed", range(3))
def test_numbers_drawn_do_not_hide_a_mean_or_a_sum(
    loss_of: Callable[[tf.Tensor], tf.Tensor], expected: Over, seed: int
) -> None:
    """Most of the input is dropped, so that two trials have little in common; the loss is drawn too."""
    tf.random.set_seed(seed)
    random, w = np.random.RandomState(seed), tf.Variable(tf.ones([30, 8]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            noise = tf.while_loop(
                lambda n, _: n < 2, lambda n, v: (n + 1, v + tf.random.truncated_normal([8])), (0, w[0])
            )
            loss = loss_of(tf.nn.dropout(x, 0.8) @ w + tf.random.normal([tf.shape(x)[0], 8], stddev=9.0) * noise[1])
        w.assign_sub(tape.gradient(loss, w))
        return loss

    division = divided(step, random.normal(size=(40, 30)).astype(np.float32))
    assert (division.gradients, division.outputs) == ([expected], [expected])


def test_sampled_candidates_are_random() -> None:
    table, bias = tf.Variable(tf.random.stateless_normal([200, 4], [1, 2])), tf.Variable(tf.zeros([200]))

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.nce_loss(table, bias, y[:, None], x, 8, 200))
        for v, gradient in zip((table, bias), tape.gradient(loss, [table, bias]), strict=True):
            v.assign_sub(0.1 * tf.convert_to_tensor(gradient))

    tf.random.set_seed(1)
    assert divided(step, np.random.RandomState(0).rand(6, 4).astype(np.float32), Y).gradients == [Over.MEAN]


def test_penalty_goes_with_a_mean_only() -> None:
    net = Net()
    assert divided(
        stepping(net, lambda v: tf.reduce_mean(v) + tf.nn.l2_loss(net.w), lambda *_: None), X, Y
    ).gradients == [Over.MEAN]
    with pytest.raises(IndivisibleError, match="neither a mean"):
        divided(stepping(net, lambda v: tf.reduce_sum(v) + tf.nn.l2_loss(net.w), lambda *_: None), X, Y)


@pytest.mark.parametrize(
    ("output_of", "expected"),
    [
        (lambda losses, *_: tf.reduce_mean(losses), Over.MEAN),
        (lambda losses, *_: tf.reduce_sum(losses), Over.SUM),
        (lambda losses, *_: losses, Over.ROWS),
        (lambda losses, gradient, x: tf.norm(gradient), Over.SAME),
        (lambda losses, gradient, x: tf.constant(3), Over.SAME),
        (lambda losses, gradient, x: tf.shape(x)[0], Over.SUM),
        # Zero on this batch, on others not.
        (lambda losses, *_: tf.reduce_sum(tf.cast(losses > 100.0, tf.int32)), Over.SUM),
        (lambda losses, *_: tf.reduce_sum(tf.cast(losses > 100.0, tf.float32)), Over.SUM),
        (lambda losses, *_: tf.reduce_mean(tf.cast(losses > 100.0, tf.float32)), Over.MEAN),
    ],
)
def test_outputs(output_of: Callable[..., Any], expected: Over) -> None:
    assert divided(stepping(Net(), tf.reduce_mean, output_of), X, Y).outputs == [expected]


@pytest.mark.parametrize(
    "output_of",
    [
        lambda losses, *_: tf.reduce_max(losses),
        lambda losses, *_: tf.sqrt(tf.reduce_mean(tf.square(losses))),
        lambda losses, *_: tf.square(tf.reduce_sum(losses)),
        lambda losses, *_: tf.as_string(tf.reduce_mean(losses)),
    ],
)
def test_outputs_that_parts_do_not_give(output_of: Callable[..., Any]) -> None:
    with pytest.raises(IndivisibleError, match="output number 1"):
        divided(stepping(Net(), tf.reduce_mean, output_of), X, Y)
    # They are computed from what all workers have, which is the same for any way of dividing.
    function = tf.function(stepping(Net(), tf.reduce_mean, output_of))
    arguments = Arguments(function, (X, Y), {})
    trial = LoopTrace(divides=True).trial(function, arguments.form)
    assert divide(trial, trial, arguments).outputs in ([Over.MEAN], [Over.SAME])


def test_additions_to_variables() -> None:
    net, steps = Net(), tf.Variable(0)

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(net.losses(x, y))
            net.w.assign_sub(tape.gradient(loss, net.w))
            steps.assign_add(1)
        net.total.assign_add(loss)
        net.count.assign_add(tf.shape(x)[0])

    division = divided(step, X, Y)
    # AutoGraph may trace the body of a loop more than once.
    assert set(division.gradients) == {Over.MEAN}
    assert division.additions[-2:] == [Over.MEAN, Over.SUM]
    assert set(division.additions[:-2]) == {Over.SAME}


def test_number_of_rows_that_is_a_constant_of_the_trace() -> None:
    """A step traced for the rows of one worker returns their number; that of the batch is the sum."""
    step = stepping(Net(), tf.reduce_mean, lambda losses, gradient, x: tf.constant(int(x.shape[0])))
    arguments = Arguments(tf.function(step), (X, Y), {}, rows=3)
    trials = [LoopTrace().trial(tf.function(step), form) for form in (arguments.form, arguments.form.with_rows(6))]
    assert divide(*trials, arguments).outputs == [Over.SUM]


def test_loss_across_rows_cannot_be_divided() -> None:
    net = Net()

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = x @ net.w
            loss = tf.reduce_mean(tf.square(logits - tf.reduce_mean(logits, 0)))
        net.w.assign_sub(tape.gradient(loss, net.w))

    with pytest.raises(IndivisibleError, match="looks across the rows"):
        divided(step, X, Y)
    assert divided(stepping(net, tf.reduce_mean, lambda *_: None), X, Y).gradients == [Over.MEAN]


NOISE = tf.random.Generator.from_seed(1)
DRAWS: list[Callable[[tf.Tensor], tf.Tensor]] = [
    lambda x: tf.nn.dropout(x, 0.5),
    lambda x: x + tf.cast(tf.random.uniform(tf.shape(x)) < 0.5, x.dtype),
    lambda x: x + NOISE.normal(tf.shape(x)),
    lambda x: x + tf.cast(tf.random.stateless_uniform(tf.shape(x), [1, 2], 0, 3, tf.int32), x.dtype),
    lambda x: tf.cond(tf.size(x) > 2, lambda: tf.nn.dropout(x, 0.5), lambda: x),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_loss_across_rows_that_draws_numbers(draw: Callable[[tf.Tensor], tf.Tensor]) -> None:
    w = tf.Variable(tf.random.stateless_normal([3, 3], [1, 2]))

    def step(is_across: bool) -> Callable[..., None]:
        def step(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                logits = draw(x @ w)
                loss = tf.reduce_mean(tf.square(logits - tf.reduce_mean(logits, 0) if is_across else logits))
            w.assign_sub(tape.gradient(loss, w))

        return step

    before, state = w.numpy().copy(), NOISE.state.numpy().copy()
    with pytest.raises(IndivisibleError, match="looks across the rows"):
        divided(step(is_across=True), X)
    assert divided(step(is_across=False), X).gradients == [Over.MEAN]
    np.testing.assert_array_equal(w.numpy(), before)
    np.testing.assert_array_equal(NOISE.state.numpy(), state)


def contrastive(logits: tf.Tensor) -> tf.Tensor:
    scores = logits @ tf.transpose(logits)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(scores)[0]), scores))


def over_known(logits: tf.Tensor) -> tf.Tensor:
    known = tf.cast(logits > 0.6, tf.float32)
    return tf.reduce_sum(known * logits**2) / tf.reduce_sum(known)


@pytest.mark.parametrize("loss_of", [contrastive, over_known, lambda v: tf.sqrt(tf.reduce_mean(v**2))])
def test_workers_that_hear_of_each_other_are_tried_together(loss_of: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Each computes from what both have: rows, or sums."""
    w = tf.Variable(tf.random.stateless_normal([3, 3], [1, 2]))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(x @ w)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    function = tf.function(step)
    arguments = Arguments(function, (X,), {})
    trial = LoopTrace(divides=True).trial(function, arguments.form)
    assert trial.holes.exchanged
    assert divide(trial, trial, arguments).was_compared


def test_what_a_step_keeps_is_compared() -> None:
    w, seen = tf.Variable(tf.ones([3])), tf.Variable(0.0)

    def keeping(kept: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], None]:
        def step(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.reduce_sum(x * w, 1))
            w.assign_sub(tape.gradient(loss, w))
            seen.assign(0.5 * seen + kept(x))

        return step

    assert divided(keeping(tf.reduce_mean), X).was_compared
    with pytest.raises(IndivisibleError, match="what it keeps of a batch in 'Variable"):
        divided(keeping(tf.reduce_sum), X)
    assert float(seen) == 0.0


def test_lengths_are_those_of_the_whole_batch_and_constants_are_left() -> None:
    w, known = tf.Variable(tf.ones([3])), tf.ragged.constant([[1], [2, 3]])

    def step(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = tf.RaggedTensor.from_tensor(x, lengths=n).to_tensor()
            loss = tf.reduce_sum(rows) / tf.cast(tf.size(rows), tf.float32) * tf.reduce_sum(w)
        w.assign_sub(tape.gradient(loss, w))
        return loss + tf.cast(tf.reduce_max(known.to_tensor()) + tf.reduce_max(tf.constant([1, 2])), tf.float32)

    lengths = tf.constant([1, 2, 1, 3, 2, 1])
    function = tf.function(step)
    arguments = Arguments(function, (X, lengths), {})
    trial = LoopTrace(divides=True).trial(function, arguments.form)
    holes = LoopTrace(divides=True).step(function, arguments.form).program.holes
    assert [hole.kind for hole in holes].count(program_pb2.Hole.KIND_LARGEST) == 1
    assert trial.holes.exchanged


def test_gradients_of_zero_compare_nothing() -> None:
    w = tf.Variable(tf.zeros([3]))

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = tf.linalg.matvec(x, w)
            loss = tf.reduce_mean(tf.square(logits - tf.reduce_mean(logits)))
        w.assign_sub(tape.gradient(loss, w))

    assert not divided(step, X).was_compared


def test_loop_that_waits_for_a_draw_ends() -> None:
    w = tf.Variable(tf.ones([3]))

    def step(x: tf.Tensor) -> None:
        draw, none = (lambda _: (tf.random.uniform([]),)), tf.constant(1.0)
        with tf.GradientTape() as tape:
            drawn = tf.while_loop(lambda number: number > 0.5, draw, (none,))[0]
            loss = tf.reduce_mean(tf.reduce_sum(x * w, 1)) + 0.0 * drawn
        w.assign_sub(tape.gradient(loss, w))

    assert divided(step, X).gradients == [Over.MEAN]


def test_arguments() -> None:
    @tf.function
    def step(*_: Any, **__: Any) -> None:
        pass

    model = object()
    arguments = Arguments(step, ({"x": X, "y": tf.constant(Y)}, model, 3, np.float32(0.5)), {"flag": None})
    assert arguments.num_rows == 6
    arrays = arguments.encode()
    assert [a.shape for a in arrays] == [(6, 3), (6,), (6,)]
    (batch, *others), kwargs = arguments.form.decode([tf.constant(a[2:4]) for a in arrays])
    np.testing.assert_array_equal(batch["x"], X[2:4])
    assert (others[0], others[1], float(others[2]), kwargs) == (model, 3, 0.5, {"flag": None})
    smaller = Arguments(step, ({"x": X[:2], "y": Y[:2]}, model, 3, np.float32(0.7)), {"flag": None})
    other = Arguments(step, ({"x": X, "y": Y}, model, 4, np.float32(0.5)), {"flag": None})
    assert arguments.form.key() == smaller.form.key() != other.form.key()


def test_arguments_without_rows_and_too_large() -> None:
    step = tf.function(lambda *_: None)
    assert Arguments(step, (), {}).num_rows is None
    assert [a.shape for a in Arguments(step, (), {}).encode()] == [(1,)]
    large = Arguments(step, (np.zeros((1000, 4)), np.zeros(10_000)), {})
    assert large.too_large and not Arguments(step, (np.zeros((1000, 4)), np.zeros(10)), {}).too_large
    whole = Arguments(step, (np.zeros((1000, 4)), np.zeros(10_000), tf.sparse.eye(5), "text"), {}, travel=Travel.WHOLE)
    arrays = whole.encode()
    assert not whole.too_large and {len(array) for array in arrays} == {1}
    (x, y, sparse, text), _ = whole.form.decode([tf.constant(array) for array in arrays])
    assert (x.shape, y.shape, text) == ((1000, 4), (10_000,), "text")
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), np.eye(5))


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

        graphs = [f.get_concrete_function(X, Y).graph for f in (trains, calls_it, looks)]
        assert [observer.trains(graph) for graph in graphs] == [True, True, False]
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
        ((), "the step is given no batch: one worker computes it"),
        ((X[:1], Y[:1]), "one worker computes all of it and the others make its update"),
    ],
)
def test_opening_tells_who_computes(args: tuple[Any, ...], said: str) -> None:
    net = Net()

    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x, y = batch or (X, Y)
            # Works for one row only, if it is given one.
            x = tf.ensure_shape(x, [1, 3]) if batch and len(args[0]) == 1 else x
            loss = tf.reduce_mean(net.losses(x, y))
        net.w.assign_sub(tape.gradient(loss, net.w))
        return loss

    config, function = RunConfig("train.py", num_workers=2), tf.function(step)
    call = Call(function, args, {}, config)
    assert said in loop_lines(config, trace_step(call, config), call.open.num_rows)[1]
