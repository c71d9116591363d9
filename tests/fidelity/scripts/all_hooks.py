"""Prints every hook of a callback as Keras calls it: its name, its numbers, and the keys of its logs, in order.

python all_hooks.py
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow import keras

HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]


def hook(name: str) -> Callable[..., None]:
    def called(self: keras.callbacks.Callback, *arguments: object, logs: dict[str, object] | None = None) -> None:
        numbers = [value for value in arguments if isinstance(value, int)]
        logs = logs or next((value for value in arguments if isinstance(value, dict)), None)
        keys = None if logs is None else [f"{key}:{type(value).__name__}" for key, value in logs.items()]
        counted = int(self.model.optimizer.iterations)
        print(name, *numbers, keys, "params", sorted(self.params), "iterations", counted, flush=True)

    return called


AllHooks = type("AllHooks", (keras.callbacks.Callback,), {name: hook(name) for name in HOOKS})


def batches() -> object:
    for start in range(0, 90, 20):
        yield X[start : start + 20], Y[start : start + 20]


class Pieces(keras.utils.PyDataset):
    """Batches by number."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return X[number * 20 : number * 20 + 20], Y[number * 20 : number * 20 + 20]


keras.utils.set_random_seed(1)
X = np.random.default_rng(0).random((90, 6), np.float32)
Y = (X.sum(axis=1) > 3).astype("int64")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
seen = AllHooks()
data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)
for title, x, options in (
    ("arrays", X, {"y": Y, "batch_size": 20, "epochs": 2, "validation_split": 0.2}),
    ("a data set", data, {"epochs": 2, "validation_data": data, "validation_freq": 2}),
    ("an endless data set", data.repeat(), {"epochs": 2, "steps_per_epoch": 3, "validation_data": (X, Y)}),
    ("unknown length", data.filter(lambda x, y: True), {"epochs": 3, "initial_epoch": 1}),
    ("a generator", batches(), {"validation_data": data, "validation_steps": 2}),
    ("a PyDataset", Pieces(), {"epochs": 2, "shuffle": False}),
):
    print("fit", title)
    history = model.fit(x, verbose=0, callbacks=[seen], **options)
    print("history", sorted(history.history), history.epoch)
print("evaluate", sorted(model.evaluate(data, verbose=0, callbacks=[seen], return_dict=True)))
print("predict", model.predict(data, verbose=0, callbacks=[seen]).shape)
