"""Steps that the script looks at one by one, in the forms that scripts have; prints milliseconds a step.

    python benchmarks/models/round_trips.py looked --steps 300

looked            a tf.function's loss is read at each step
unlooked          it is read at the end
target            it is read, and another model gets the weights at every fifth step
train_on_batch    a model's own
hooks             `fit` with a callback that has a batch hook
hooks_large       the same with a model of 20 MB (60 with its optimizer)
epochs            a `fit` for each 50 steps
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

FORMS = ("looked", "unlooked", "target", "train_on_batch", "hooks", "hooks_large", "epochs")
BATCH, COLUMNS = 16, 8
# Steps that start up.
WARM_UP = 50


class Clock(keras.callbacks.Callback):
    """Notes when each batch ends."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        self.at.append(time.perf_counter())


def model_of(width: int, layers: int) -> keras.Model:
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    return keras.Sequential([keras.Input((COLUMNS,)), *hidden, keras.layers.Dense(1)])


def in_a_loop(form: str, x: np.ndarray, y: np.ndarray) -> Iterator[float]:
    """Makes steps of a tf.function; yields when each is done."""
    model, target = model_of(32, 1), model_of(32, 1)
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    loss = None
    for number, (rows, labels) in enumerate(zip(x, y, strict=True)):
        loss = step(rows, labels)
        if form != "unlooked" or number + 1 in (WARM_UP, len(x)):
            float(loss)
        if form == "target" and number % 5 == 0:
            target.set_weights(model.get_weights())
        yield time.perf_counter()


def on_batches(x: np.ndarray, y: np.ndarray) -> Iterator[float]:
    model = model_of(32, 1)
    model.compile("sgd", "mse")
    for rows, labels in zip(x, y, strict=True):
        model.train_on_batch(rows, labels)
        yield time.perf_counter()


def in_epochs(x: np.ndarray, y: np.ndarray) -> Iterator[float]:
    """Yields once for each 50 steps."""
    model = model_of(32, 1)
    model.compile("sgd", "mse")
    for begin in range(0, len(x), 50):
        rows, labels = (array[begin : begin + 50].reshape(-1, array.shape[-1]) for array in (x, y))
        model.fit(rows, labels, batch_size=BATCH, verbose=0)
        yield time.perf_counter()


def hooked(width: int, layers: int, x: np.ndarray, y: np.ndarray) -> list[float]:
    clock, model = Clock(), model_of(width, layers)
    model.compile("adam", "mse")
    rows, labels = (array.reshape(-1, array.shape[-1]) for array in (x, y))
    model.fit(rows, labels, batch_size=BATCH, verbose=0, callbacks=[clock])
    return clock.at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(options.steps, BATCH, COLUMNS)).astype("float32")
    y = x.sum(2, keepdims=True)
    forms: dict[str, Callable[[], list[float]]] = {
        "train_on_batch": lambda: list(on_batches(x, y)),
        "hooks": lambda: hooked(32, 1, x, y),
        "hooks_large": lambda: hooked(1300, 4, x, y),
        "epochs": lambda: list(in_epochs(x, y)),
    }
    at = forms.get(options.form, lambda: list(in_a_loop(options.form, x, y)))()
    if options.form in ("unlooked", "target"):
        # Steps differ: the mean of all after the start.
        milliseconds = (at[-1] - at[WARM_UP - 1]) / (len(at) - WARM_UP) * 1e3
    else:
        lasted = np.diff(at)[min(WARM_UP, len(at) // 3) :]
        milliseconds = statistics.median(lasted.tolist()) * 1e3
    print("RESULT", json.dumps({"milliseconds": milliseconds}))


if __name__ == "__main__":
    main()
