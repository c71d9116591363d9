# https://github.com/keras-team/keras/issues/13826
import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(5)
weight = keras.Variable(0.0, trainable=False)


class Sampling(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(11)

    def call(self, inputs):
        mean, log_var = inputs
        self.add_loss(weight * ops.mean(-0.5 * ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=-1)))
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seeds)


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        weight.assign(min(1.0, epoch / 2))


inputs = keras.Input((10,))
hidden = keras.layers.Dense(8, "relu")(inputs)
drawn = Sampling()([keras.layers.Dense(2)(hidden), keras.layers.Dense(2)(hidden)])
model = keras.Model(inputs, keras.layers.Dense(10, "sigmoid")(drawn))
model.compile("adam", "binary_crossentropy")
x = (np.random.default_rng(0).random((100, 10)) > 0.5).astype("float32")
print(model.fit(x, x, batch_size=32, epochs=4, verbose=0, callbacks=[Anneal()]).history["loss"])
print("updates", int(model.optimizer.iterations), float(weight))
