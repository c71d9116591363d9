# https://github.com/keras-team/keras/pull/18978
import keras
import numpy as np

keras.utils.set_random_seed(28)
x = np.random.default_rng(0).normal(size=(80, 5)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
for swap in (False, True):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
    model.compile(
        keras.optimizers.SGD(0.3, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4), "binary_crossentropy"
    )
    saved = keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
    callbacks = [saved, keras.callbacks.SwapEMAWeights(swap_on_epoch=swap)]
    print(model.fit(x, y, batch_size=32, epochs=3, verbose=0, validation_data=(x, y), callbacks=callbacks).history)
    model.load_weights("2.weights.h5")
    print(model.evaluate(x, y, verbose=0), "\nupdates", int(model.optimizer.iterations))
