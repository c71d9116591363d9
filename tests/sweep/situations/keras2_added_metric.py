# https://github.com/tensorflow/tensorflow/pull/26351
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf


class Watched(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense, self.deviation = tf.keras.layers.Dense(6, "relu"), tf.keras.metrics.Mean(name="deviation")

    def call(self, x):
        hidden = self.dense(x)
        self.add_loss(0.01 * tf.reduce_mean(tf.square(hidden)))
        self.add_metric(tf.math.reduce_std(hidden), name="std", aggregation="mean")
        self.add_metric(self.deviation(tf.abs(hidden)))
        return hidden


tf.keras.utils.set_random_seed(58)
x = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
inputs = tf.keras.Input((4,))
hidden = Watched()(inputs)
outputs = tf.keras.layers.Dense(1)(hidden)
model = tf.keras.Model(inputs, outputs)
model.add_metric(tf.reduce_sum(hidden), name="sum", aggregation="mean")
model.add_loss(tf.reduce_mean(tf.abs(outputs)) * 0.1)
model.compile("adam", "mse", metrics=["mae"])
print(model.fit(x, x.sum(1), batch_size=32, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
