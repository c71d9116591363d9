# https://github.com/keras-team/keras/issues/19179
import keras
import numpy as np


class Interrupting(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("Interrupting!")


keras.utils.set_random_seed(27)
x, y = np.random.default_rng(0).normal(size=(5, 20)).astype("float32"), np.zeros(5)
callback = keras.callbacks.BackupAndRestore(backup_dir="backup")
model = keras.models.Sequential([keras.Input((20,)), keras.layers.Dense(10)])
model.compile(keras.optimizers.Adam(), loss="mse")
try:
    model.fit(x, y, epochs=5, batch_size=1, callbacks=[callback, Interrupting()], verbose=0)
except RuntimeError as error:
    print(error, int(model.optimizer.iterations))
history = model.fit(x, y, epochs=5, batch_size=1, callbacks=[callback], verbose=0)
print(len(history.history["loss"]), history.history["loss"], float(np.abs(model.get_weights()[0]).sum()))
print("updates", int(model.optimizer.iterations))
