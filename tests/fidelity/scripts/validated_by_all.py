"""Validates by several workers and compares the last validation with the weights that came home; rows of three batch sizes."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, unseen = rng.random((96, 8), np.float32), rng.random((47, 8), np.float32)
hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16, activation="relu")(inputs := keras.Input((8,))))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
truth = unseen.sum(axis=1, keepdims=True)
given = {"validation_data": (unseen, truth), "validation_batch_size": 9}
history = model.fit(x, x.sum(axis=1, keepdims=True), batch_size=20, epochs=3, verbose=0, **given).history
evaluated = model.evaluate(unseen, truth, batch_size=9, verbose=0)
off = np.asarray(model(unseen)) - truth
expected = [float(np.mean(off**2)), float(np.mean(np.abs(off)))]
print(
    "apart",
    max(
        abs(a - b)
        for made in (evaluated, [history["val_loss"][-1], history["val_mae"][-1]])
        for a, b in zip(made, expected, strict=True)
    ),
)
