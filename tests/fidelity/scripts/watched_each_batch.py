"""Trains a model of some megabytes while a callback looks at each batch's logs, at one weight every tenth batch, and changes
the learning rate; prints what it has seen, and the bytes of all variables, as JSON.
"""

import json
from typing import Any

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.random((640, 32), np.float32)
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(1000, activation="relu"),
        keras.layers.Dense(1000, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(1e-4), "mse")


class Watching(keras.callbacks.Callback):
    """Keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        self.seen.append(float(logs["loss"]))
        if batch % 10 == 9:
            self.seen.append(float(self.model.layers[-1].bias.numpy()[0]))
            self.model.optimizer.learning_rate.assign(1e-4 / (batch + 1))


watching = Watching()
model.fit(x, y, batch_size=16, epochs=2, callbacks=[watching], verbose=0)
variables = [*model.variables, *model.optimizer.variables]
print(json.dumps({"seen": watching.seen, "bytes": sum(int(np.prod(variable.shape)) * 4 for variable in variables)}))
