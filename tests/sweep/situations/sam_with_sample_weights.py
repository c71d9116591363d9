# https://github.com/Jannoshh/simple-sam/issues/6
import keras
import numpy as np
import tensorflow as tf


class SAM(keras.Model):
    def __init__(self, inner, rho=0.05):
        super().__init__()
        self.inner, self.rho = inner, rho

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        scale = self.rho / (tf.linalg.global_norm(gradients) + 1e-12)
        moves = [gradient * scale for gradient in gradients]
        for move, variable in zip(moves, self.trainable_variables):
            variable.assign_add(move)
        with tf.GradientTape() as tape:
            given = self(x, training=True)
            loss = self.compute_loss(x, y, given, weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        for move, variable in zip(moves, self.trainable_variables):
            variable.assign_sub(move)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.compute_metrics(x, y, given, weight) | {"loss": loss}


keras.utils.set_random_seed(40)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(80, 4)).astype("float32"), rng.integers(0, 3, 80)
model = SAM(keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]))
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((x, y, rng.random(80).astype("float32"))).batch(32)
print(model.fit(data, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
