"""Two towers with a table each, in-batch softmax with corrected logits, a train_step of the script's own, and recall at ten."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
USERS, ITEMS, WIDTH, BATCH = 60_000, 40_000, 32, 64
random = np.random.default_rng(0)
users = random.integers(0, USERS, 2048).astype("int32")
items = ((users * 7 + random.integers(0, 3, 2048)) % ITEMS).astype("int32")
counts = np.bincount(items, minlength=ITEMS) / len(items)


class TwoTower(keras.Model):
    def __init__(self):
        super().__init__()
        self.users = keras.Sequential(
            [keras.layers.Embedding(USERS, WIDTH), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(16)]
        )
        self.items = keras.Sequential(
            [keras.layers.Embedding(ITEMS, WIDTH), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(16)]
        )
        self.loss_of = keras.metrics.Mean("loss")

    def call(self, pair):
        return self.users(pair[0]), self.items(pair[1])

    def train_step(self, data):
        ((user, item, weight),) = data
        with tf.GradientTape() as tape:
            queries, candidates = self([user, item])
            scores = tf.matmul(queries, candidates, transpose_b=True) - tf.math.log(weight)[None, :]
            labels = tf.range(tf.shape(scores)[0])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        self.loss_of.update_state(loss)
        return {"loss": self.loss_of.result()}

    @property
    def metrics(self):
        return [self.loss_of]


model = TwoTower()
model((users[:2], items[:2]))
model.compile(keras.optimizers.Adam(0.003))
weights = counts[items].astype("float32")
data = (
    tf.data.Dataset.from_tensor_slices((users, items, weights))
    .map(lambda *row: (row,))
    .shuffle(2048, seed=2)
    .batch(BATCH, drop_remainder=True)
)
history = model.fit(data, epochs=3, verbose=0).history["loss"]
print("loss", *(f"{loss:.4f}" for loss in history))
queries, candidates = model.predict((users[:256], items[:256]), verbose=0)
best = np.argsort(-queries @ candidates.T, axis=1)[:, :10]
print("recall at 10", f"{np.mean([i in row for i, row in enumerate(best)]):.2f}")
