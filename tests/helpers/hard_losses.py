"""Losses written to be hard to divide: what they mean cannot be read off them."""

from typing import Any

import tensorflow as tf

from tests.helpers.hard_net import CLASSES, HIDDEN, Net, loss


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
