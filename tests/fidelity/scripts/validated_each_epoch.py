"""Trains a model of so many megabytes and validates after each epoch, on small rows; prints bytes and seconds, as JSON.

    python validated_each_epoch.py --epochs 6 --rows 2000 --megabytes 5

`between` are the seconds from the end of an epoch's last step to the begin of the next epoch's first, the largest first.
"""

import argparse
import itertools
import json
import time
from typing import Any

import keras
import numpy as np

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--epochs", type=int, default=6)
PARSER.add_argument("--rows", type=int, default=2000)
PARSER.add_argument("--megabytes", type=float, default=5.0)
ARGUMENTS = PARSER.parse_args()

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.random((2000, 32), np.float32)
more = rng.random((ARGUMENTS.rows, 32), np.float32)
y, more_y = ((rows.sum(axis=1) > 16).astype("int64") for rows in (x, more))
width = int((ARGUMENTS.megabytes * 1e6 / 4) ** 0.5)
model = keras.Sequential(
    [
        keras.Input((32,)),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.Dense(2),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])

times: list[tuple[str, float]] = []


def noted(name: str) -> None:
    """Notes when Keras's list of callbacks is called: a callback of the script's would have weights come home."""
    original = getattr(keras.callbacks.CallbackList, name)

    def called(*arguments: Any, **options: Any) -> None:
        times.append((name, time.perf_counter()))
        original(*arguments, **options)

    setattr(keras.callbacks.CallbackList, name, called)


noted("on_train_batch_begin")
noted("on_train_batch_end")
# A bar: its last step in an epoch waits for the workers.
history = model.fit(x, y, epochs=ARGUMENTS.epochs, validation_data=(more, more_y), batch_size=100, verbose=1)
at = [(later[1] - one[1]) for one, later in itertools.pairwise(times) if one[0] > later[0]]
of_epochs = sorted(at, reverse=True)[: ARGUMENTS.epochs - 1]
variables = [*model.variables, *model.optimizer.variables]
held = sum(int(np.prod(variable.shape)) * 4 for variable in variables)
print(json.dumps({"between": of_epochs, "bytes": held, "val_loss": history.history["val_loss"]}))
