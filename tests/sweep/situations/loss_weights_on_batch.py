# https://github.com/keras-team/keras/issues/3212
import keras
import numpy as np

keras.utils.set_random_seed(42)
rng = np.random.default_rng(0)
a, b = rng.normal(size=(60, 3)).astype("float32"), rng.normal(size=(60, 2)).astype("float32")
y = [a.sum(1, keepdims=True), keras.utils.to_categorical(rng.integers(0, 3, 60), 3), (b[:, :1] > 0).astype("float32")]
first, second = keras.Input((3,)), keras.Input((2,))
hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([first, second]))
outputs = [
    keras.layers.Dense(1, name="sum")(hidden),
    keras.layers.Dense(3, "softmax", name="kind")(hidden),
    keras.layers.Dense(1, "sigmoid", name="sign")(hidden),
]
model = keras.Model([first, second], outputs)
losses = {
    "sum": "mse",
    "kind": keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    "sign": "binary_crossentropy",
}
model.compile("adamw", losses, loss_weights=[1.0, 0.1, 0.5], metrics={"kind": "accuracy", "sum": ["mae"]})
for epoch in range(2):
    for rows in (slice(0, 25), slice(25, 50), slice(50, 60)):
        logs = model.train_on_batch([a[rows], b[rows]], [each[rows] for each in y], return_dict=True)
    print({name: float(value) for name, value in sorted(logs.items())})
print(model.test_on_batch([a, b], y), "\nupdates", int(model.optimizer.iterations))
