"""Training steps written to be hard to divide; with those of `hard_losses`, all there are."""

from typing import Any

import tensorflow as tf

from tests.helpers.hard_losses import mean
from tests.helpers.hard_net import CLASSES, FEATURES, HIDDEN, STEPS, Net, Step, hard

__all__ = ["CLASSES", "FEATURES", "STEPS", "Net"]


@hard()
def clipped(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    weights = [net.w1, net.b1, net.w2]
    gradients, _ = tf.clip_by_global_norm(tape.gradient(value, weights), 0.1)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(gradient)
    return value


@hard()
def rate_from_the_loss(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    net.rate.assign(0.1 / (1 + value))
    return net.descend(value, tape)


@hard()
def branch_on_the_loss(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    first, second = tape.gradient(value, [net.w1, net.w2])

    def both() -> Any:
        net.w1.assign_sub(0.1 * first)
        net.w2.assign_sub(0.1 * second)
        return value

    def one() -> Any:
        net.w1.assign_sub(0.01 * first)
        return 2 * value

    return tf.cond(value < 1.4, both, one)


@hard()
def each_samples_gradient_clipped(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        each = net.losses(x, y)
    jacobian = tape.jacobian(each, net.w2)
    norms = tf.sqrt(tf.reduce_sum(jacobian**2, [1, 2]))
    net.w2.assign_sub(0.1 * tf.reduce_mean(jacobian / tf.maximum(1.0, norms)[:, None, None], 0))
    return tf.reduce_mean(each)


@hard()
def gradient_penalty(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            out = tf.reduce_sum(net.logits(x), 1)
        slope = inner.gradient(out, x)
        value = tf.reduce_mean(out) + tf.reduce_mean((tf.norm(slope, axis=1) - 1) ** 2)
    return net.descend(value, tape)


@hard()
def sharpness_aware(net: Net, x: Any, y: Any) -> Any:
    weights = [net.w1, net.b1, net.w2]
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    gradients = tape.gradient(value, weights)
    up = [0.05 * gradient / (tf.linalg.global_norm(gradients) + 1e-12) for gradient in gradients]
    for weight, step in zip(weights, up, strict=True):
        weight.assign_add(step)
    with tf.GradientTape() as tape:
        there = tf.reduce_mean(net.losses(x, y))
    for weight, step, gradient in zip(weights, up, tape.gradient(there, weights), strict=True):
        weight.assign_sub(step + 0.1 * gradient)
    return value


@hard()
def surgery(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        one, other = tf.reduce_mean(net.losses(x, y)), tf.reduce_mean(net.logits(x) ** 2)
    a, b = tape.gradient(one, net.w1), tape.gradient(other, net.w1)
    agree = tf.reduce_sum(a * b)
    a = tf.cond(agree < 0, lambda: a - agree / tf.reduce_sum(b * b) * b, lambda: a)
    net.w1.assign_sub(0.1 * (a + b))
    return one


@hard()
def teacher(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        apart = tf.reduce_mean((net.hidden(x) - tf.stop_gradient(tf.nn.tanh(x @ net.teacher))) ** 2)
        value = apart + tf.reduce_mean(net.losses(x, y))
    net.descend(value, tape)
    net.teacher.assign(0.9 * net.teacher + 0.1 * net.w1)
    return value


@hard(ConcatV2=1)
def queue_of_rows(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        z = net.hidden(x)
        value = tf.reduce_mean(net.losses(x, y)) + tf.reduce_mean(tf.nn.softmax(z @ tf.transpose(net.queue)))
    net.descend(value, tape)
    net.queue.assign(tf.concat([net.queue[tf.shape(x)[0] :], z], 0))
    net.count.assign_add(tf.cast(tf.shape(x)[0], tf.int64))
    return value


@hard()
def codebook(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        z = net.hidden(x)
        far = tf.reduce_sum(z**2, 1, keepdims=True) - 2 * z @ tf.transpose(net.codes) + tf.reduce_sum(net.codes**2, 1)
        nearest = tf.argmin(far, 1)
        value = tf.reduce_mean((z - tf.stop_gradient(tf.gather(net.codes, nearest))) ** 2)
        value += tf.reduce_mean(net.losses(x, y))
    net.descend(value, tape)
    chosen = tf.one_hot(nearest, 5)
    means = tf.math.divide_no_nan(tf.matmul(chosen, z, transpose_a=True), tf.reduce_sum(chosen, 0)[:, None])
    net.codes.assign(0.9 * net.codes + 0.1 * means)
    return value


@hard()
def two_halves_in_turn(net: Net, x: Any, y: Any) -> Any:
    total = 0.0
    for i in range(2):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(net.losses(x[i::2], y[i::2]))
        total += net.descend(value, tape)
    return total


@hard(ResourceScatterNdSub=1)
def sparse_gradient(net: Net, x: Any, y: Any) -> Any:
    numbers = tf.cast(tf.abs(x) * 10, tf.int32) % 10
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(tf.reduce_mean(tf.gather(net.table, numbers), 1), y))
    rows, weights = tape.gradient(value, [net.table, net.w1])
    net.w1.assign_sub(0.1 * weights)
    net.table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
    return value


@hard()
def functions_that_write_in_turn(net: Net, x: Any, y: Any) -> Any:
    """No tensor goes from one call to the next: each waits for the one before."""
    add = tf.function(lambda: net.codes.assign_add(tf.ones_like(net.codes)))
    double = tf.function(lambda: net.codes.assign(net.codes * 2.0))
    add(), double(), add(), double()
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    net.descend(value, tape)
    return tf.reduce_sum(net.codes) * 1e-3 + value


@hard(ResourceScatterNdAdd=1)
def codes_that_follow_rows(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        z = net.hidden(x)
        value = tf.reduce_mean(net.losses(x, y))
    net.descend(value, tape)
    net.codes.scatter_add(tf.IndexedSlices(0.01 * tf.stop_gradient(z), tf.argmax(z[:, :5], 1)))
    net.codes.scatter_update(tf.IndexedSlices(0.5, tf.constant([0])))
    return value + tf.reduce_mean(net.codes)


@hard()
def step_that_is_skipped(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    gradient = tape.gradient(value, net.w1)
    good = tf.reduce_all(tf.math.is_finite(gradient)) & (tf.norm(gradient) < 0.3)
    net.w1.assign(tf.where(good, net.w1 - 0.1 * gradient, net.w1))
    net.count.assign_add(tf.cast(good, tf.int64))
    return value


@hard()
def backtracking(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    gradient, factor = tape.gradient(value, net.w1), tf.constant(1.0)
    while tf.norm(gradient) * factor > 0.01:
        factor *= 0.5
    net.w1.assign_sub(gradient * factor)
    return value


def _gradient(net: Net, value: Step, x: Any, y: Any, weight: tf.Variable) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        out = value(net, x, y)
    return out, tape.gradient(out, weight)


@hard()
def adam_by_hand(net: Net, x: Any, y: Any) -> Any:
    value, gradient = _gradient(net, mean, x, y, net.w1)
    net.count.assign_add(1)
    net.kept.assign(0.9 * net.kept + 0.1 * gradient)
    net.w1.assign_sub(0.01 * net.kept / (1 - 0.9 ** tf.cast(net.count, tf.float32)) / (tf.norm(gradient) + 1e-3))
    return value


@hard()
def every_second_step(net: Net, x: Any, y: Any) -> Any:
    value, gradient = _gradient(net, mean, x, y, net.w1)
    net.count.assign_add(1)
    net.kept.assign_add(gradient)

    def apply() -> Any:
        net.w1.assign_sub(0.05 * net.kept)
        net.kept.assign(tf.zeros_like(net.kept))
        return value

    return tf.cond(net.count % 2 == 0, apply, lambda: value)


@hard()
def learned_weights_of_losses(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        parts = tf.stack([tf.reduce_mean(net.losses(x, y)), tf.reduce_mean(net.hidden(x) ** 2)])
        value = tf.reduce_sum(parts * tf.exp(-net.scale[:2]) + net.scale[:2])
    first, weights = tape.gradient(value, [net.w1, net.scale])
    net.w1.assign_sub(0.1 * first)
    net.scale.assign_sub(0.1 * weights)
    return value


@hard()
def classes_that_are_hard_weigh_more(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        each = net.losses(x, y)
        value = tf.reduce_mean(tf.gather(net.scale, y) * each)
    net.descend(value, tape)
    of_class = tf.math.unsorted_segment_mean(each, y, CLASSES)
    net.scale.assign(tf.nn.softmax(tf.math.log(net.scale) + of_class) * CLASSES)
    return value


@hard()
def inner_step(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            first = tf.reduce_mean(net.losses(x, y))
        moved = net.w1 - 0.1 * tape.gradient(first, net.w1)
        z = tf.nn.tanh((x + 0.1) @ moved + net.b1) @ net.w2
        value = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, z))
    return net.descend(value, outer)


@hard()
def curvature_by_a_random_vector(net: Net, x: Any, y: Any) -> Any:
    vector = tf.sign(tf.random.stateless_normal(net.w1.shape, [9, 1]))
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(net.losses(x, y))
        gradient = tape.gradient(value, net.w1)
        along = tf.reduce_sum(gradient * vector)
    curved = tf.abs(outer.gradient(along, net.w1) * vector)
    net.w1.assign_sub(0.1 * gradient / (curved + 0.1))
    return value


@hard()
def natural_gradient(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        each = net.losses(x, y)
    rows = tf.reshape(tape.jacobian(each, net.w2), (-1, HIDDEN * CLASSES))
    fisher = tf.matmul(rows, rows, transpose_a=True) / tf.cast(tf.shape(x)[0], tf.float32)
    gradient = tf.reduce_mean(rows, 0)
    step = tf.linalg.solve(fisher + tf.eye(HIDDEN * CLASSES), gradient[:, None])
    net.w2.assign_sub(0.1 * tf.reshape(step, (HIDDEN, CLASSES)))
    return tf.reduce_mean(each)


@hard()
def two_players(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as one, tf.GradientTape() as other:
        made = tf.random.stateless_normal((tf.shape(x)[0], HIDDEN), [2, 9]) @ tf.transpose(net.w1)
        real, fake = tf.reduce_mean(net.logits(x), 1), tf.reduce_mean(net.logits(made), 1)
        critic = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake))
        maker = tf.reduce_mean(tf.nn.softplus(-fake))
    net.w2.assign_sub(0.1 * one.gradient(critic, net.w2))
    net.w1.assign_sub(0.1 * other.gradient(maker, net.w1))
    return critic + maker


@hard()
def normalised_by_a_moving_mean(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        z = net.hidden(x)
        middle, spread = tf.nn.moments(z, [0])
        value = tf.reduce_mean(((z - 0.5 * middle - 0.5 * net.b1) / tf.sqrt(spread + 0.1)) @ net.w2)
    net.descend(value, tape)
    net.b1.assign(0.9 * net.b1 + 0.1 * middle)
    return value


@hard()
def spectral_norm_by_hand(net: Net, x: Any, y: Any) -> Any:
    vector = tf.math.l2_normalize(
        tf.linalg.matvec(net.w1, tf.linalg.matvec(net.w1, tf.ones(FEATURES), transpose_a=True))
    )
    with tf.GradientTape() as tape:
        size = tf.norm(tf.linalg.matvec(net.w1, vector, transpose_a=True))
        value = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.nn.tanh(x @ (net.w1 / size)) @ net.w2)
        )
    return net.descend(value, tape)


@hard()
def counts_of_classes(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(x, y))
    net.descend(value, tape)
    right = tf.cast(tf.argmax(net.logits(x), 1) == y, tf.float32)
    net.scale.assign_add(tf.math.bincount(tf.cast(y, tf.int32), minlength=CLASSES, maxlength=CLASSES, dtype=tf.float32))
    net.count.assign_add(tf.cast(tf.reduce_sum(right), tf.int64))
    return tf.reduce_min(right) + value


@hard(TopKV2=1)
def median_as_a_metric(net: Net, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        each = net.losses(x, y)
        value = tf.reduce_mean(each)
    net.descend(value, tape)
    return tf.sort(each)[tf.shape(each)[0] // 2]


@hard()
def search_along_the_gradient(net: Net, x: Any, y: Any) -> Any:
    value, gradient = _gradient(net, mean, x, y, net.w1)
    before, rate, tried = tf.identity(net.w1), tf.constant(1.0), tf.constant(0)
    net.w1.assign(before - rate * gradient)
    while tried < 5 and tf.reduce_mean(net.losses(x, y)) > value - 0.3 * rate * tf.reduce_sum(gradient**2):
        rate *= 0.5
        tried += 1
        net.w1.assign(before - rate * gradient)
    net.rate.assign(rate)
    return value


@hard()
def penalty_without_a_tape(net: Net, x: Any, y: Any) -> Any:
    value = tf.reduce_mean(net.losses(x, y))
    (first,) = tf.gradients(value, [net.w1])
    total = value + 0.1 * tf.reduce_sum(first**2)
    one, other = tf.gradients(total, [net.w1, net.w2])
    net.w1.assign_sub(0.1 * one)
    net.w2.assign_sub(0.1 * other)
    return total


@hard()
def updated_by_a_raw_operation(net: Net, x: Any, y: Any) -> Any:
    value, gradient = _gradient(net, mean, x, y, net.w1)
    tf.raw_ops.ResourceApplyGradientDescent(var=net.w1.handle, alpha=0.1, delta=gradient)
    return value
