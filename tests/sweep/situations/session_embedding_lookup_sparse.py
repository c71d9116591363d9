"""A click model by TensorFlow 1: embedding_lookup_sparse over bags of ids with weights, Adagrad for rows, Ftrl for the wide part, a session."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
v1.set_random_seed(2)
IDS, WIDTH, BATCH = 30_000, 16, 64
random = np.random.default_rng(1)
bags = [random.zipf(1.3, random.integers(1, 9)) % IDS for _ in range(1280)]
clicked = np.array([float(np.mean(bag % 3 == 0) > 0.4) for bag in bags], "float32")[:, None]
places, ids, counts = (
    v1.placeholder(tf.int64, [None, 2]),
    v1.placeholder(tf.int64, [None]),
    v1.placeholder(tf.float32, [None]),
)
shape, y = v1.placeholder(tf.int64, [2]), v1.placeholder(tf.float32, [None, 1])
table = v1.get_variable("table", [IDS, WIDTH], initializer=v1.random_uniform_initializer(-0.1, 0.1, seed=3))
wide = v1.get_variable("wide", [IDS, 1], initializer=v1.zeros_initializer())
bag = tf.SparseTensor(places, ids, shape)
weights = tf.SparseTensor(places, counts, shape)
deep = tf.nn.embedding_lookup_sparse(table, bag, weights, combiner="sqrtn")
kernel = v1.get_variable("kernel", [WIDTH, 1], initializer=v1.random_normal_initializer(stddev=0.3, seed=5))
logits = tf.matmul(tf.nn.relu(deep), kernel) + tf.nn.embedding_lookup_sparse(wide, bag, None, combiner="sum")
loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
of_rows = v1.train.AdagradOptimizer(0.5).minimize(loss, var_list=[table, kernel])
of_wide = v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001).minimize(loss, var_list=[wide])
train = tf.group(of_rows, of_wide)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    for epoch in range(4):
        losses = []
        for start in range(0, len(bags), BATCH):
            some = bags[start : start + BATCH]
            indices = np.array([(i, k) for i, each in enumerate(some) for k in range(len(each))])
            feed = {
                places: indices,
                ids: np.concatenate(some),
                counts: np.ones(len(indices)),
                y: clicked[start : start + BATCH],
            }
            feed[shape] = [len(some), max(map(len, some))]
            losses.append(session.run([train, loss], feed)[1])
        print("epoch", epoch, f"loss {np.mean(losses):.4f}")
    print("norm", f"{np.linalg.norm(session.run(table)):.3f}")
