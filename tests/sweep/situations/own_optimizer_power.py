# https://github.com/keras-team/keras/issues/12987
import keras
import numpy as np
from keras import ops


class Powered(keras.optimizers.Optimizer):
    def __init__(self, learning_rate=0.1, c=0.5, mu=0.7, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.c, self.mu = c, mu

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        rate, at = ops.cast(learning_rate, variable.dtype), ops.cast(self.iterations + 1, variable.dtype)
        total = self.sums[self._get_variable_index(variable)]
        self.assign_add(total, ops.square(gradient))
        shrunk = self.c * ops.power(rate, 0.5 + self.mu) * ops.power(at, self.mu)
        moved = variable - rate * gradient / (ops.sqrt(total) + 1e-7)
        self.assign(variable, ops.sign(moved) * ops.maximum(ops.abs(moved) - 1e-3 * shrunk, 0.0))


keras.utils.set_random_seed(31)
x = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
model.compile(Powered(keras.optimizers.schedules.InverseTimeDecay(0.1, 3, 0.5), global_clipnorm=1.0), "mae")
print(model.fit(x, x.max(1), batch_size=32, epochs=3, verbose=0).history["loss"])
print([float(np.abs(v).sum()) for v in model.optimizer.variables], "\nupdates", int(model.optimizer.iterations))
