"""A ranking model as DLRM has it: eight tables of differing sizes, a bottom and a top network, dot interactions, Adagrad, a loop of tf.function."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
SIZES, WIDTH, BATCH = [50_000, 20_000, 9_000, 4_000, 700, 100, 24, 3], 16, 128
random = np.random.default_rng(0)
number = 2560
dense = random.lognormal(size=(number, 6)).astype("float32")
sparse = np.stack([random.zipf(1.2, number) % size for size in SIZES], 1).astype("int32")
clicked = (np.log1p(dense[:, 0]) + (sparse[:, 4] % 5 == 0) + random.normal(size=number) * 0.3 > 1.2).astype("float32")

tables = [
    tf.Variable(tf.random.uniform([size, WIDTH], -(size**-0.5), size**-0.5), name=f"table_{i}")
    for i, size in enumerate(SIZES)
]
bottom = keras.Sequential([keras.Input((6,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(WIDTH, "relu")])
pairs = (len(SIZES) + 1) * len(SIZES) // 2
top = keras.Sequential([keras.Input((pairs + WIDTH,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
variables = [*tables, *bottom.trainable_variables, *top.trainable_variables]
optimizer = keras.optimizers.Adagrad(0.05)
upper = [(i, j) for i in range(len(SIZES) + 1) for j in range(i)]


def forward(x, ids):
    low = bottom(tf.math.log1p(x))
    rows = tf.stack([low, *(tf.nn.embedding_lookup(table, ids[:, i]) for i, table in enumerate(tables))], 1)
    products = tf.matmul(rows, rows, transpose_b=True)
    return top(tf.concat([low, *(products[:, i, j][:, None] for i, j in upper)], 1))[:, 0]


@tf.function
def train(x, ids, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=forward(x, ids)))
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


data = (
    tf.data.Dataset.from_tensor_slices((dense, sparse, clicked))
    .shuffle(number, seed=5)
    .batch(BATCH, drop_remainder=True)
)
for epoch in range(3):
    total = 0.0
    for x, ids, y in data:
        total += float(train(x, ids, y))
    print("epoch", epoch, f"loss {total / (number // BATCH):.4f}")
auc = keras.metrics.AUC()
auc.update_state(clicked, tf.sigmoid(forward(dense, sparse)))
print("auc", f"{float(auc.result()):.3f}")
