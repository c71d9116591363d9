# https://github.com/keras-team/keras-io/pull/451
import keras
import numpy as np
import tensorflow as tf


class SimCLR(keras.Model):
    def __init__(self):
        super().__init__()
        self.augment = keras.Sequential(
            [keras.layers.RandomFlip("horizontal", seed=1), keras.layers.RandomTranslation(0.2, 0.2, seed=2)]
        )
        self.encoder = keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, 2, activation="relu"), keras.layers.Flatten()]
        )
        self.head = keras.Sequential([keras.Input((36,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(8)])
        self.probe = keras.Sequential([keras.Input((36,)), keras.layers.Dense(3)])
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            one, two = (
                tf.math.l2_normalize(self.head(self.encoder(self.augment(images, training=True))), 1) for _ in range(2)
            )
            near = tf.matmul(one, two, transpose_b=True) / 0.1
            places = tf.range(tf.shape(near)[0])
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(places, near, from_logits=True)
                + keras.losses.sparse_categorical_crossentropy(places, tf.transpose(near), from_logits=True)
            )
        self.optimizer.apply_gradients(
            zip(
                tape.gradient(loss, self.encoder.trainable_weights + self.head.trainable_weights),
                self.encoder.trainable_weights + self.head.trainable_weights,
            )
        )
        with tf.GradientTape() as tape:
            logits = self.probe(self.encoder(images, training=False))
            probe_loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        self.probe_optimizer.apply_gradients(
            zip(tape.gradient(probe_loss, self.probe.trainable_weights), self.probe.trainable_weights)
        )
        self.accuracy.update_state(labels, logits)
        return {"contrastive": loss, "probe": probe_loss, "accuracy": self.accuracy.result()}


keras.utils.set_random_seed(7)
rng = np.random.default_rng(0)
model = SimCLR()
model.probe_optimizer = keras.optimizers.Adam(1e-2)
model.compile(keras.optimizers.Adam(1e-3))
print(
    model.fit(
        rng.random((50, 8, 8, 1)).astype("float32"), rng.integers(0, 3, 50), batch_size=20, epochs=3, verbose=0
    ).history
)
print("updates", int(model.optimizer.iterations), int(model.probe_optimizer.iterations))
