# https://github.com/tue-bmd/zea/pull/172
import keras
import numpy as np
import tensorflow as tf


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.network = keras.Sequential([keras.Input((7,)), keras.layers.Dense(16, "swish"), keras.layers.Dense(6)])
        self.ema = keras.models.clone_model(self.network)
        self.seeds, self.noise_loss = keras.random.SeedGenerator(3), keras.metrics.Mean(name="noise")

    def train_step(self, data):
        noise = keras.random.normal(tf.shape(data), seed=self.seeds)
        angle = keras.random.uniform((tf.shape(data)[0], 1), 0.1, 1.4, seed=self.seeds)
        with tf.GradientTape() as tape:
            given = self.network(tf.concat([tf.cos(angle) * data + tf.sin(angle) * noise, angle], 1), training=True)
            loss = self.compute_loss(y=noise, y_pred=given)
        self.optimizer.apply(tape.gradient(loss, self.network.trainable_weights), self.network.trainable_weights)
        self.noise_loss.update_state(loss)
        for weight, slow in zip(self.network.weights, self.ema.weights):
            slow.assign(0.9 * slow + 0.1 * weight)
        return {"noise": self.noise_loss.result()}

    @property
    def metrics(self):
        return [self.noise_loss]


keras.utils.set_random_seed(6)
model = Diffusion()
model.compile(keras.optimizers.AdamW(1e-2, weight_decay=1e-3), keras.losses.mean_absolute_error)
print(
    model.fit(
        np.random.default_rng(0).normal(size=(100, 6)).astype("float32"), batch_size=40, epochs=3, verbose=0
    ).history
)
print([float(np.abs(w).sum()) for w in model.ema.get_weights()], "\nupdates", int(model.optimizer.iterations))
