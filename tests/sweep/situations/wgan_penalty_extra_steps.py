# https://github.com/keras-team/keras/issues/14327
import keras
import numpy as np
import tensorflow as tf


class WGAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential([keras.layers.Dense(16, "leaky_relu"), keras.layers.Dense(1)])
        self.maker = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(5)])
        self.seeds = keras.random.SeedGenerator(7)

    def train_step(self, real):
        n = tf.shape(real)[0]
        for _ in range(3):
            fake = self.maker(keras.random.normal((n, 3), seed=self.seeds), training=True)
            mixed = real + keras.random.uniform((n, 1), seed=self.seeds) * (fake - real)
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(mixed)
                    score = self.critic(mixed, training=True)
                slope = tf.norm(inner.gradient(score, mixed), axis=1)
                d_loss = (
                    tf.reduce_mean(self.critic(fake))
                    - tf.reduce_mean(self.critic(real))
                    + 10.0 * tf.reduce_mean((slope - 1.0) ** 2)
                )
            self.d_optimizer.apply_gradients(
                zip(tape.gradient(d_loss, self.critic.trainable_weights), self.critic.trainable_weights)
            )
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(
                self.critic(self.maker(keras.random.normal((n, 3), seed=self.seeds), training=True))
            )
        self.g_optimizer.apply_gradients(
            zip(tape.gradient(g_loss, self.maker.trainable_weights), self.maker.trainable_weights)
        )
        return {"d_loss": d_loss, "g_loss": g_loss}


keras.utils.set_random_seed(4)
model = WGAN()
model.d_optimizer, model.g_optimizer = keras.optimizers.RMSprop(1e-3), keras.optimizers.RMSprop(1e-3)
model.compile()
history = model.fit(
    np.random.default_rng(0).normal(size=(70, 5)).astype("float32"), batch_size=32, epochs=3, verbose=0
).history
print(history["d_loss"], history["g_loss"])
print("updates", int(model.d_optimizer.iterations), int(model.g_optimizer.iterations))
