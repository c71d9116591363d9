# https://github.com/keras-team/keras/issues/1591
import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(80, 4)).astype("float32")
y, best = (x[:, 0] * x[:, 1] > 0).astype("float32"), (None, np.inf)
for trial in range(3):
    chosen = {
        "layers": int(rng.integers(1, 3)),
        "units": int(rng.integers(4, 12)),
        "rate": 10 ** rng.uniform(-3, -1),
        "batch": int(rng.integers(15, 40)),
    }
    keras.utils.set_random_seed(51)
    model = keras.Sequential([keras.Input((4,))])
    for _ in range(chosen["layers"]):
        model.add(keras.layers.Dense(chosen["units"], keras.layers.PReLU() if trial else "selu"))
        model.add(keras.layers.AlphaDropout(0.1, seed=5) if trial == 2 else keras.layers.GaussianNoise(0.1, seed=6))
    model.add(keras.layers.Dense(1, "sigmoid"))
    model.compile(keras.optimizers.Adam(chosen["rate"]), "binary_crossentropy")
    stop = keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True, min_delta=0.01)
    history = model.fit(
        x[:60],
        y[:60],
        validation_data=(x[60:], y[60:]),
        batch_size=chosen["batch"],
        epochs=4,
        verbose=0,
        callbacks=[stop],
    ).history
    loss = model.evaluate(x[60:], y[60:], verbose=0)
    print(chosen, len(history["loss"]), history["val_loss"], loss, "\nupdates", int(model.optimizer.iterations))
    best = min(best, (chosen, loss), key=lambda pair: pair[1])
print(best)
