# https://github.com/keras-team/tf-keras/issues/539
import pathlib

import keras
import numpy as np

keras.utils.set_random_seed(24)
x = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
y = x.sum(1) + 0.1 * x[:, 0] ** 2


def made():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    return model


model = made()
every = keras.callbacks.ModelCheckpoint("every_{epoch:02d}_{batch:02d}.weights.h5", save_weights_only=True, save_freq=3)
best = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_mae", mode="min", save_best_only=True)
print(
    model.fit(x, y, validation_split=0.25, epochs=4, batch_size=20, verbose=0, callbacks=[every, best]).history[
        "val_mae"
    ]
)
for path in sorted(pathlib.Path().glob("every*")):
    again = made()
    again.load_weights(path)
    print(path.name, again.evaluate(x, y, verbose=0))
again = keras.models.load_model("best.keras")
print(again.evaluate(x, y, verbose=0), int(again.optimizer.iterations), "\nupdates", int(model.optimizer.iterations))
