# https://github.com/tensorflow/tensorflow/issues/35798
import keras
import numpy as np
import tensorflow as tf


class PerRow(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    @tf.function
    def call(self, x):
        result = tf.TensorArray(tf.float32, size=tf.shape(x)[0])
        for i in tf.range(tf.shape(x)[0]):
            if tf.reduce_sum(x[i]) > 0:
                result = result.write(i, x[i] ** 2 * self.scale)
            else:
                result = result.write(i, x[i])
        return tf.ensure_shape(result.stack(), (None, 4))


keras.utils.set_random_seed(46)
x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), PerRow(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
print(
    model.fit(x, np.abs(x).sum(1), batch_size=20, epochs=3, verbose=0).history,
    "\nupdates",
    int(model.optimizer.iterations),
)
