# https://github.com/keras-team/keras/issues/1711
import keras
import numpy as np

rng = np.random.default_rng(0)
x, y = rng.normal(size=(70, 4)).astype("float32"), rng.integers(0, 2, 70)
folds, scores = np.array_split(rng.permutation(70), 3), []
for number, test in enumerate(folds):
    keras.backend.clear_session()
    keras.utils.set_random_seed(50 + number)
    train = np.setdiff1d(np.arange(70), test)
    model = keras.Sequential(
        [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(x[train], y[train], batch_size=20, epochs=2, verbose=0)
    scores.append(model.evaluate(x[test], y[test], verbose=0))
    print(number, scores[-1], "\nupdates", int(model.optimizer.iterations))
print(np.mean(scores, axis=0).tolist(), np.std(scores, axis=0).tolist())
