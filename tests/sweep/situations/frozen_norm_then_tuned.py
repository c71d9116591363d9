# https://github.com/keras-team/keras/pull/9965
import keras
import numpy as np

keras.utils.set_random_seed(16)
rng = np.random.default_rng(0)
x, y = rng.normal(2.0, 3.0, size=(90, 6)).astype("float32"), rng.integers(0, 3, 90)
base = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.Dense(8, "relu"),
    ]
)
first = keras.Sequential([base, keras.layers.Dense(2)])
first.compile("sgd", "mse")
print(first.fit(x, x[:, :2], batch_size=40, epochs=2, verbose=0).history["loss"])
base.trainable = False
inputs = keras.Input((6,))
tuned = keras.Model(inputs, keras.layers.Dense(3, "softmax")(base(inputs, training=False)))
for rate, free in ((1e-2, 0), (1e-4, 2)):
    for layer in base.layers[len(base.layers) - free :]:
        layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)
    tuned.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    print(free, len(tuned.trainable_weights), tuned.fit(x, y, batch_size=40, epochs=2, verbose=0).history)
    print([float(np.abs(w).sum()) for w in base.get_weights()], "\nupdates", int(tuned.optimizer.iterations))
