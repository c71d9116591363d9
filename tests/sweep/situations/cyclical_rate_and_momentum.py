# https://github.com/keras-team/keras-contrib/pull/336
import keras
import numpy as np


class Cycle(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.step, self.rates = 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        place = abs((self.step % 8) / 4 - 1)
        self.model.optimizer.learning_rate = 0.001 + 0.05 * (1 - place)
        self.rates.append((float(self.model.optimizer.learning_rate), float(logs["loss"])))


keras.utils.set_random_seed(26)
x = np.random.default_rng(0).normal(size=(70, 3)).astype("float32")
model = keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.001, momentum=0.9, nesterov=True, weight_decay=1e-3), keras.losses.Huber(0.5))
cycle = Cycle()
model.fit(x, x.prod(1), batch_size=16, epochs=3, verbose=0, callbacks=[cycle])
print(cycle.rates, "\nupdates", int(model.optimizer.iterations))
