# https://github.com/keras-team/keras/issues/4468
import keras
import numpy as np

keras.utils.set_random_seed(14)
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 7, 5)).astype("float32")
for row, length in enumerate(rng.integers(1, 8, 60)):
    x[row, length:] = 0.0
y = (x.sum(-1, keepdims=True) > 0).astype("float32")
layers = [
    keras.layers.Masking(0.0),
    keras.layers.Bidirectional(keras.layers.LSTM(6, return_sequences=True), merge_mode="ave"),
    keras.layers.TimeDistributed(keras.layers.Dense(1)),
    keras.layers.Activation("sigmoid"),
]
model = keras.Sequential([keras.Input((7, 5)), *layers])
model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"], weighted_metrics=["mae"])
weights = np.where(y[..., 0] > 0, 2.0, 1.0)
print(model.fit(x, y, sample_weight=weights, batch_size=16, epochs=3, verbose=0).history)
print("updates", int(model.optimizer.iterations))
