"""Training steps written to be hard to divide: what a loss means cannot be read off them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

FEATURES, CLASSES, HIDDEN = 6, 4, 8


class Net:
    """A small net and what steps keep beside it."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)

        def normal(*shape: int) -> tf.Variable:
            return tf.Variable(random.normal(size=shape).astype("float32") * 0.5)

        self.w1, self.w2 = normal(FEATURES, HIDDEN), normal(HIDDEN, CLASSES)
        self.b1 = tf.Variable(tf.zeros(HIDDEN))
        self.table, self.codes = normal(10, FEATURES), normal(5, HIDDEN)
        self.teacher = tf.Variable(self.w1)
        self.queue = tf.Variable(tf.zeros((30, HIDDEN)))
        self.rate, self.count = tf.Variable(0.1), tf.Variable(0, dtype=tf.int64)
        self.kept, self.scale = tf.Variable(tf.zeros((FEATURES, HIDDEN))), tf.Variable(tf.ones(CLASSES))

    @property
    def variables(self) -> list[tf.Variable]:
        return list(vars(self).values())

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.tanh(x @ self.w1 + self.b1)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        return self.hidden(x) @ self.w2

    def losses(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x))

    def descend(self, loss: tf.Tensor, tape: tf.GradientTape) -> tf.Tensor:
        weights = [self.w1, self.b1, self.w2]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            if gradient is not None:
                weight.assign_sub(self.rate * gradient)
        return loss


Step = Callable[[Net, tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class HardStep:
    """A step, and which of its operations are known to be computed whole on divided inputs."""

    step: Step
    whole: Mapping[str, int]


STEPS: dict[str, HardStep] = {}


def hard(**whole: int) -> Callable[[Step], Step]:
    """Registers a step; says what of it is computed whole."""

    def register(step: Step) -> Step:
        STEPS[step.__name__] = HardStep(step, whole)
        return step

    return register


def loss(**whole: int) -> Callable[[Step], Step]:
    """Registers the step that descends along a loss."""

    def register(function: Step) -> Step:
        def step(net: Net, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = function(net, x, y)
            return net.descend(value, tape)

        STEPS[function.__name__] = HardStep(step, whole)
        return function

    return register


# ---- losses ---------------------------------------------------------------------------------------------------------


@loss()
def mean(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_mean(net.losses(x, y))


@loss()
def class_balanced(net: Net, x: Any, y: Any) -> Any:
    one_hot = tf.one_hot(y, CLASSES)
    return tf.reduce_mean(tf.reduce_sum(one_hot * net.losses(x, y)[:, None], 0) / (tf.reduce_sum(one_hot, 0) + 1e-6))


@loss()
def missing_targets(net: Net, x: Any, y: Any) -> Any:
    there = tf.cast(x[:, :CLASSES] > 0, tf.float32)
    return tf.reduce_mean(tf.reduce_sum((net.logits(x) - 1.0) ** 2 * there, 0) / (tf.reduce_sum(there, 0) + 1e-6))


@loss(Where=2, GatherV2=2)
def boolean_mask(net: Net, x: Any, y: Any) -> Any:
    kept = x[:, 0] > 0
    return tf.reduce_mean((tf.boolean_mask(net.logits(x)[:, 0], kept) - tf.boolean_mask(x[:, 1], kept)) ** 2)


@loss()
def contrastive(net: Net, x: Any, y: Any) -> Any:
    z, n = tf.math.l2_normalize(net.hidden(x), 1), tf.shape(x)[0]
    similar = tf.matmul(z, z, transpose_b=True) / 0.1 - 1e9 * tf.eye(n)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.roll(tf.range(n), 1, 0), similar))


@loss(TopKV2=1)
def trimmed(net: Net, x: Any, y: Any) -> Any:
    each = tf.sort(net.losses(x, y))
    return tf.reduce_mean(each[: tf.shape(each)[0] // 2 + 1])


@loss(TopKV2=1)
def hardest(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.math.top_k(net.losses(x, y), min(2, int(x.shape[0])))[0])


@loss(Cumsum=1)
def cumulative(net: Net, x: Any, y: Any) -> Any:
    return 0.01 * tf.reduce_mean(tf.cumsum(net.losses(x, y)) ** 2)


@loss()
def ranking(net: Net, x: Any, y: Any) -> Any:
    score, target = net.logits(x)[:, 0], x[:, 0]
    return tf.reduce_mean(tf.nn.relu(1 - (score[:, None] - score) * tf.sign(target[:, None] - target)))


@loss()
def dice(net: Net, x: Any, y: Any) -> Any:
    p, t = tf.nn.softmax(net.logits(x)), tf.one_hot(y, CLASSES)
    return 1 - tf.reduce_mean(2 * tf.reduce_sum(p * t, 0) / (tf.reduce_sum(p + t, 0) + 1))


@loss()
def concordance(net: Net, x: Any, y: Any) -> Any:
    p, t = net.logits(x)[:, 0], x[:, 0]
    means = tf.reduce_mean(p), tf.reduce_mean(t)
    spread = tf.math.reduce_variance(p) + tf.math.reduce_variance(t) + (means[0] - means[1]) ** 2
    return 1 - 2 * tf.reduce_mean((p - means[0]) * (t - means[1])) / spread


@loss()
def size_from_the_shape(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_sum(net.losses(x, y)) / tf.cast(tf.shape(x)[0], tf.float32)


@loss()
def largest_and_spread(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_max(net.losses(x, y)) + tf.math.reduce_std(net.logits(x))


@loss()
def soft_maximum(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_logsumexp(net.losses(x, y))


@loss()
def load_balance(net: Net, x: Any, y: Any) -> Any:
    p = tf.nn.softmax(net.logits(x))
    taken = tf.reduce_mean(tf.one_hot(tf.argmax(p, 1), CLASSES), 0)
    return tf.reduce_mean(net.losses(x, y)) + CLASSES * tf.reduce_sum(tf.reduce_mean(p, 0) * taken)


@loss()
def decorrelation(net: Net, x: Any, y: Any) -> Any:
    z = net.hidden(x)
    z -= tf.reduce_mean(z, 0)
    covariance = tf.matmul(z, z, transpose_a=True) / tf.cast(tf.shape(z)[0], tf.float32)
    return tf.reduce_sum((covariance - tf.eye(HIDDEN)) ** 2)


@loss()
def determinant(net: Net, x: Any, y: Any) -> Any:
    z = net.hidden(x)
    return tf.reduce_mean(net.losses(x, y)) - tf.linalg.logdet(tf.matmul(z, z, transpose_a=True) + tf.eye(HIDDEN))


@loss()
def attention_by_einsum(net: Net, x: Any, y: Any) -> Any:
    q = tf.reshape(net.hidden(x), (-1, 2, 4))
    attended = tf.einsum("bik,bkj->bij", tf.nn.softmax(tf.einsum("bij,bkj->bik", q, q)), q)
    return tf.reduce_mean(tf.reshape(attended, (tf.shape(x)[0], HIDDEN)) @ net.w2)


@loss(TopKV2=1, Where=1, GatherV2=1)
def above_the_median(net: Net, x: Any, y: Any) -> Any:
    each = net.losses(x, y)
    above = tf.where(each >= tf.sort(each)[tf.shape(each)[0] // 2])[:, 0]
    return tf.reduce_mean(tf.gather(each, above))


@loss(ReverseV2=0, StridedSlice=2)
def mixed_rows(net: Net, x: Any, y: Any) -> Any:
    part = tf.random.stateless_uniform((tf.shape(x)[0], 1), [3, 4])
    target = part * tf.one_hot(y, CLASSES) + (1 - part) * tf.one_hot(y[::-1], CLASSES)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, net.logits(part * x + (1 - part) * x[::-1])))


@loss()
def time_first(net: Net, x: Any, y: Any) -> Any:
    z = tf.transpose(tf.reshape(net.hidden(x), (-1, 4, 2)), (1, 0, 2))
    return tf.reduce_mean(tf.reduce_sum(z[1:] * z[:-1], [0, 2]))


@loss(GatherV2=1)
def shuffled(net: Net, x: Any, y: Any) -> Any:
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(x)[0]), [1, 2])
    return tf.reduce_mean(net.losses(0.5 * x + 0.5 * tf.gather(x, order), y))


@loss()
def centres_of_classes(net: Net, x: Any, y: Any) -> Any:
    centres = tf.math.unsorted_segment_mean(net.hidden(x), y, CLASSES)
    return tf.reduce_mean((net.hidden(x) - tf.gather(centres, y)) ** 2) + tf.reduce_mean(net.losses(x, y))


@loss(TensorListFromTensor=1)
def row_by_row(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_sum(net.logits(row[None]) ** 2), x))


@loss()
def recurrence(net: Net, x: Any, y: Any) -> Any:
    state = tf.zeros((tf.shape(x)[0], HIDDEN))
    for k in tf.range(4):
        state = tf.nn.tanh(state + x @ net.w1 + tf.cast(k, tf.float32))
    return tf.reduce_mean(state @ net.w2)


@loss()
def dropout_by_hand(net: Net, x: Any, y: Any) -> Any:
    kept = tf.cast(tf.random.stateless_uniform(tf.shape(net.hidden(x)), [5, 6]) > 0.4, tf.float32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, (net.hidden(x) * kept / 0.6) @ net.w2)
    return tf.reduce_mean(each)


# ---- steps ----------------------------------------------------------------------------------------------------------


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


@hard(ResourceScatterSub=1)
def sparse_gradient(net: Net, x: Any, y: Any) -> Any:
    numbers = tf.cast(tf.abs(x) * 10, tf.int32) % 10
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(net.losses(tf.reduce_mean(tf.gather(net.table, numbers), 1), y))
    rows, weights = tape.gradient(value, [net.table, net.w1])
    net.w1.assign_sub(0.1 * weights)
    net.table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
    return value


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


# ---- more losses ----------------------------------------------------------------------------------------------------


@loss(TopKV2=1)
def quantile(net: Net, x: Any, y: Any) -> Any:
    each = tf.sort(net.losses(x, y))
    last = tf.shape(each)[0] - 1
    return each[last // 4] + each[last // 2] + each[last]


@loss(SparseSoftmaxCrossEntropyWithLogits=1)
def both_ways(net: Net, x: Any, y: Any) -> Any:
    one, other = tf.math.l2_normalize(net.hidden(x), 1), tf.math.l2_normalize(net.hidden(x + 0.1), 1)
    similar, own = tf.matmul(one, other, transpose_b=True) / 0.2, tf.range(tf.shape(x)[0])
    across = tf.nn.sparse_softmax_cross_entropy_with_logits
    return tf.reduce_mean(across(own, similar)) + tf.reduce_mean(across(own, tf.transpose(similar)))


@loss()
def hardest_triplets(net: Net, x: Any, y: Any) -> Any:
    z = net.hidden(x)
    far = tf.reduce_sum((z[:, None] - z[None]) ** 2, 2)
    alike = tf.cast(y[:, None] == y[None], tf.float32)
    return tf.reduce_mean(tf.nn.relu(tf.reduce_max(far * alike, 1) - tf.reduce_min(far + 1e3 * alike, 1) + 0.2))


@loss(TopKV2=1, GatherV2=1)
def partial_likelihood(net: Net, x: Any, y: Any) -> Any:
    risk = tf.gather(net.logits(x)[:, 0], tf.argsort(x[:, 0], direction="DESCENDING"))
    return -tf.reduce_mean(risk - tf.math.cumulative_logsumexp(risk))


@loss()
def variance_and_covariance(net: Net, x: Any, y: Any) -> Any:
    z = net.hidden(x)
    z -= tf.reduce_mean(z, 0)
    n = tf.cast(tf.shape(z)[0], tf.float32)
    spread = tf.sqrt(tf.reduce_sum(z**2, 0) / n + 1e-4)
    covariance = tf.matmul(z, z, transpose_a=True) / n
    return tf.reduce_mean(tf.nn.relu(1 - spread)) + tf.reduce_sum(
        (covariance - tf.linalg.diag(tf.linalg.diag_part(covariance))) ** 2
    )


@loss()
def kernel_distance(net: Net, x: Any, y: Any) -> Any:
    z, other = net.hidden(x), tf.random.stateless_normal((tf.shape(x)[0], HIDDEN), [7, 8])

    def kernel(a: Any, b: Any) -> Any:
        return tf.reduce_mean(tf.exp(-tf.reduce_sum((a[:, None] - b[None]) ** 2, 2)))

    return kernel(z, z) + kernel(other, other) - 2 * kernel(z, other)


@loss()
def transport(net: Net, x: Any, y: Any) -> Any:
    z, other = net.hidden(x), net.codes
    cost = tf.reduce_sum((z[:, None] - other[None]) ** 2, 2)
    n = tf.cast(tf.shape(x)[0], tf.float32)
    kernel, u, v = tf.exp(-cost / 5.0), tf.ones((tf.shape(x)[0], 1)), tf.ones((1, 5))
    for _ in range(3):
        u = (1 / n) / tf.reduce_sum(kernel * v, 1, keepdims=True)
        v = (1 / 5) / tf.reduce_sum(kernel * u, 0, keepdims=True)
    return tf.reduce_sum(u * kernel * v * cost)


@loss()
def focal_over_all_rows(net: Net, x: Any, y: Any) -> Any:
    each = net.losses(x, y)
    weights = (1 - tf.exp(-each)) ** 2
    return tf.reduce_sum(weights * each) / tf.stop_gradient(tf.reduce_sum(weights))


@loss()
def prior_of_the_batch(net: Net, x: Any, y: Any) -> Any:
    prior = tf.reduce_mean(tf.one_hot(y, CLASSES), 0)
    target = 0.9 * tf.one_hot(y, CLASSES) + 0.1 * prior
    adjusted = net.logits(x) + tf.math.log(prior + 1e-3)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, adjusted))


@loss()
def easy_rows_first(net: Net, x: Any, y: Any) -> Any:
    each = net.losses(x, y)
    easy = tf.cast(each <= tf.reduce_mean(each) + tf.math.reduce_std(each), tf.float32)
    return tf.reduce_sum(each * easy) / tf.maximum(tf.reduce_sum(easy), 1.0)


@loss(Cumsum=1)
def experts_with_capacity(net: Net, x: Any, y: Any) -> Any:
    gates = tf.nn.softmax(net.logits(x))
    chosen = tf.one_hot(tf.argmax(gates, 1), CLASSES)
    place = tf.cumsum(chosen, 0) * chosen
    kept = chosen * tf.cast(place <= 1 + tf.cast(tf.shape(x)[0], tf.float32) / CLASSES, tf.float32)
    return tf.reduce_mean(tf.reduce_sum(kept * gates, 1) * net.losses(x, y))


@loss()
def softmax_over_each_class(net: Net, x: Any, y: Any) -> Any:
    score = net.logits(x)[:, 0]
    top = tf.math.unsorted_segment_max(score, y, CLASSES)
    weight = tf.exp(score - tf.stop_gradient(tf.gather(top, y)))
    weight /= tf.gather(tf.math.unsorted_segment_sum(weight, y, CLASSES), y)
    return tf.reduce_mean(weight * net.losses(x, y))


@loss()
def whitened(net: Net, x: Any, y: Any) -> Any:
    z = net.hidden(x)
    covariance = tf.matmul(z, z, transpose_a=True) / tf.cast(tf.shape(x)[0], tf.float32) + 0.5 * tf.eye(HIDDEN)
    white = tf.transpose(tf.linalg.triangular_solve(tf.linalg.cholesky(covariance), tf.transpose(z)))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, white @ net.w2))


@loss()
def tversky_with_logarithm(net: Net, x: Any, y: Any) -> Any:
    p, t = tf.nn.softmax(net.logits(x)), tf.one_hot(y, CLASSES)
    hit, false, missed = (tf.reduce_sum(each) for each in (p * t, p * (1 - t), (1 - p) * t))
    return -(tf.math.log(hit / (hit + 0.3 * false + 0.7 * missed)) ** 3) + tf.reduce_mean(net.losses(x, y))


# ---- more steps -----------------------------------------------------------------------------------------------------


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
