# https://github.com/tensorflow/tensorflow/pull/28623
import keras
import numpy as np
import tensorflow as tf


class Warmed(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, rate, warm):
        self.rate, self.warm, self.after = (
            rate,
            warm,
            keras.optimizers.schedules.CosineDecayRestarts(rate, 3, t_mul=1.5, alpha=0.1),
        )

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return tf.cond(
            step < self.warm, lambda: self.rate * (step + 1) / self.warm, lambda: self.after(step - self.warm)
        )


keras.utils.set_random_seed(32)
x = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
model, optimizer = (
    keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(1)]),
    keras.optimizers.RMSprop(Warmed(0.05, 4)),
)
for epoch in range(4):
    for start in range(0, 70, 32):
        features = x[start : start + 32]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(features)[:, 0] - features.min(1)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    print(epoch, float(optimizer.learning_rate), float(loss))
print("updates", int(optimizer.iterations))
