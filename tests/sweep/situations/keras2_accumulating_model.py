# https://github.com/keras-team/tf-keras/issues/107
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf


class Accumulating(tf.keras.Model):
    def __init__(self, n, **kwargs):
        super().__init__(**kwargs)
        self.n, self.step = tf.constant(n), tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.trainable_variables]

    def train_step(self, data):
        x, y = data
        self.step.assign_add(1)
        with tf.GradientTape() as tape:
            given = self(x, training=True)
            loss = self.compiled_loss(y, given, regularization_losses=self.losses)
        for total, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
            total.assign_add(gradient)
        tf.cond(tf.equal(self.step, self.n), self.apply_all, lambda: None)
        self.compiled_metrics.update_state(y, given)
        return {m.name: m.result() for m in self.metrics}

    def apply_all(self):
        self.optimizer.apply_gradients(
            zip([s / tf.cast(self.n, tf.float32) for s in self.sums], self.trainable_variables)
        )
        self.step.assign(0)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


tf.keras.utils.set_random_seed(33)
x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
inputs = tf.keras.Input((4,))
model = Accumulating(
    3,
    inputs=inputs,
    outputs=tf.keras.layers.Dense(1, kernel_regularizer="l2")(tf.keras.layers.Dense(6, "relu")(inputs)),
)
model.compile(tf.keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
print(model.fit(x, x.sum(1), batch_size=20, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
