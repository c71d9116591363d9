# https://github.com/keras-team/keras/issues/7470
import pathlib

import keras
import numpy as np

keras.utils.set_random_seed(25)
x = np.random.default_rng(0).normal(size=(90, 3)).astype("float32")
y = x.sum(1)
y[75] = np.nan
model = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
told = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: print(epoch, logs), on_train_end=lambda logs: print("end", sorted(logs))
)
callbacks = [keras.callbacks.CSVLogger("log.csv", append=True), keras.callbacks.TerminateOnNaN(), told]
model.fit(x[:60], y[:60], epochs=2, batch_size=20, verbose=0, callbacks=callbacks, validation_data=(x[:10], y[:10]))
model.fit(
    x, y, epochs=3, batch_size=20, verbose=0, callbacks=callbacks, shuffle=False, validation_data=(x[:10], y[:10])
)
print(pathlib.Path("log.csv").read_text())
print([float(w.sum()) for w in model.get_weights()], "\nupdates", int(model.optimizer.iterations))
