# https://github.com/keras-team/keras/issues/3119
import keras
import numpy as np
import tensorflow as tf


@tf.custom_gradient
def reversed_gradient(x, strength):
    return tf.identity(x), lambda upstream: (-strength * upstream, tf.zeros_like(strength))


class Reversal(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.strength = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return reversed_gradient(x, tf.convert_to_tensor(self.strength))


keras.utils.set_random_seed(44)
rng = np.random.default_rng(0)
x = np.concatenate([rng.normal(size=(45, 4)), rng.normal(1.0, size=(45, 4))]).astype("float32")
labels, domains = (x[:, 0] > 0.5).astype("float32"), np.repeat([0.0, 1.0], 45)
inputs = keras.Input((4,))
features, reversal = keras.layers.Dense(8, "relu")(inputs), Reversal()
model = keras.Model(
    inputs,
    [
        keras.layers.Dense(1, "sigmoid", name="label")(features),
        keras.layers.Dense(1, "sigmoid", name="domain")(reversal(features)),
    ],
)
model.compile("adam", ["binary_crossentropy"] * 2)
growing = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: reversal.strength.assign(epoch / 3))
weights = [1.0 - domains, np.ones(90)]
print(
    model.fit(
        x, [labels, domains], sample_weight=weights, batch_size=32, epochs=4, verbose=0, callbacks=[growing]
    ).history
)
print("updates", int(model.optimizer.iterations))
