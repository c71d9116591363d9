# https://github.com/keras-team/keras/issues/3554
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(41)
rng = np.random.default_rng(0)
x = rng.integers(1, 15, (70, 8))
for row, length in enumerate(rng.integers(2, 9, 70)):
    x[row, length:] = 0
y, weights = tf.keras.utils.to_categorical(x % 3, 3), (x > 0) * np.linspace(1, 2, 8)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Embedding(15, 6, input_length=8, mask_zero=True),
        tf.keras.layers.LSTM(7, return_sequences=True),
        tf.keras.layers.TimeDistributed(tf.keras.layers.Dense(3, activation="softmax")),
    ]
)
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["categorical_crossentropy"])
print(
    model.fit(
        x, y, sample_weight=weights, batch_size=32, epochs=3, verbose=0, validation_data=(x[:9], y[:9], weights[:9])
    ).history
)
print("updates", int(model.optimizer.iterations))
