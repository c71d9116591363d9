# https://github.com/keras-team/keras/issues/6328
import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(12)


class Minimal(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        self.gate = self.add_weight(shape=(shape[-1] + self.units, self.units), initializer="glorot_uniform")
        self.kernel = self.add_weight(shape=(shape[-1] + self.units, self.units), initializer="orthogonal")

    def call(self, inputs, states, training=False):
        forget = ops.sigmoid(ops.concatenate([inputs, states[0]], -1) @ self.gate)
        fresh = ops.tanh(ops.concatenate([inputs, forget * states[0]], -1) @ self.kernel)
        state = (1 - forget) * states[0] + forget * fresh
        return state, [state]


rng = np.random.default_rng(0)
x = rng.normal(size=(75, 6, 3)).astype("float32")
rnn = keras.layers.RNN(
    keras.layers.StackedRNNCells(
        [Minimal(5), keras.layers.GRUCell(4, recurrent_dropout=0.2, seed=3), keras.layers.LSTMCell(3)]
    )
)
model = keras.Sequential([keras.Input((6, 3)), rnn, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
print(
    model.fit(x, x.sum((1, 2)), batch_size=32, epochs=3, verbose=0).history,
    "\nupdates",
    int(model.optimizer.iterations),
)
