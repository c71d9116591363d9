# https://github.com/keras-team/tf-keras/issues/72
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(17)
rng = np.random.default_rng(0)
columns = {"age": rng.integers(20, 80, 90).astype("float32"), "income": rng.normal(50.0, 9.0, 90).astype("float32")}
data = (
    tf.data.Dataset.from_tensor_slices((columns, (columns["age"] > 50).astype("float32")))
    .shuffle(90, seed=3)
    .batch(32)
    .prefetch(2)
)


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.norms = {name: tf.keras.layers.Normalization(axis=None) for name in columns}
        for name, norm in self.norms.items():
            norm.adapt(data.map(lambda x, y, name=name: x[name]))
        self.hidden, self.out = tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1, "sigmoid")

    def call(self, inputs):
        return self.out(self.hidden(tf.stack([self.norms[name](inputs[name]) for name in sorted(inputs)], axis=1)))


model = Net()
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
print(model.fit(data, epochs=3, verbose=0).history)
print("updates", int(model.optimizer.iterations))
