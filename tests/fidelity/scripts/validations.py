"""Fits that validate, in every form: prints what callbacks are called with, and writes all figures to OUT.

    python validations.py --out FILE --keras 3 [--cases arrays,two_outputs]

A situation's name ends in `_here` if its validation stays on the script's machine.
"""

import argparse
import json
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--out", type=pathlib.Path, required=True)
PARSER.add_argument("--keras", type=int, default=3)
PARSER.add_argument("--cases", type=lambda text: text.split(","))
ARGUMENTS = PARSER.parse_args()
if ARGUMENTS.keras == 2:
    import tf_keras as keras
else:
    import keras

RNG = np.random.default_rng(0)
X, VX = RNG.random((90, 6), np.float32), RNG.random((47, 6), np.float32)
Y, VY = ((x.sum(axis=1) > 3).astype("int64") for x in (X, VX))
W = RNG.random(47).astype("float32")
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def layers() -> list[Any]:
    return [
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2),
    ]


def compiled(model: Any = None, **options: Any) -> Any:
    model = model or keras.Sequential([keras.Input((6,)), *layers()])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, **{"metrics": ["accuracy"], **options})
    return model


def fit(model: Any, x: Any = X, y: Any = Y, **options: Any) -> dict[str, Any]:
    given = {"batch_size": 20, "epochs": 3, "verbose": 0, **options}
    if y is None:
        del given["batch_size"]
    return dict(model.fit(x, y, **given).history)


class Calls(keras.callbacks.Callback):
    """Prints the calls around a validation, and the logs that it is given."""

    def on_test_begin(self, logs: Any = None) -> None:
        print("on_test_begin", logs)

    def on_test_end(self, logs: Any = None) -> None:
        print("on_test_end", shown(logs), "weights", f"{float(np.abs(self.model.get_weights()[0]).sum()):.5f}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print("on_epoch_end", epoch, shown(logs))


class BatchCalls(Calls):
    """The calls of each batch, too."""

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        print("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        print("on_test_batch_end", batch, shown(logs))


class Swaps(keras.callbacks.Callback):
    """Validates with other weights than it trains, as moving averages are."""

    def on_test_begin(self, logs: Any = None) -> None:
        self.kept = self.model.get_weights()
        self.model.set_weights([weight * 0.5 for weight in self.kept])

    def on_test_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.kept)


def shown(logs: Any) -> Any:
    return {name: f"{type(value).__name__} {float(value):.5f}" for name, value in (logs or {}).items()}


@case
def arrays() -> Any:
    return fit(compiled(), validation_data=(VX, VY))


@case
def weighted_rows() -> Any:
    model = compiled(weighted_metrics=["accuracy"])
    return fit(model, validation_data=(VX, VY, W), class_weight={0: 1.0, 1: 3.0}, validation_batch_size=7)


@case
def split_every_second_epoch() -> Any:
    return fit(compiled(), validation_split=0.3, validation_freq=2, epochs=5)


@case
def some_steps() -> Any:
    return fit(compiled(), validation_data=(VX, VY), validation_steps=2, validation_freq=[1, 3])


@case
def printed_lines() -> Any:
    return fit(compiled(), validation_data=(VX, VY), verbose=2)


@case
def callbacks_of_an_epoch() -> Any:
    return fit(compiled(), validation_data=(VX, VY), callbacks=[Calls()])


@case
def callbacks_of_batches_here() -> Any:
    return fit(compiled(), validation_data=(VX, VY), callbacks=[BatchCalls()])


@case
def other_weights() -> Any:
    return fit(compiled(), validation_data=(VX, VY), callbacks=[Swaps()])


@case
def stopped_early() -> Any:
    stopping = keras.callbacks.EarlyStopping("val_loss", min_delta=0.05, patience=1)
    return fit(compiled(), validation_data=(VX, VY), callbacks=[stopping], epochs=20)


@case
def best_weights() -> Any:
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.1)
    model = compiled()
    history = fit(model, validation_data=(VX, VY), callbacks=[stopping, plateau], epochs=12)
    return {**history, "after": model.evaluate(VX, VY, verbose=0)}


@case
def rows_of_a_data_set() -> Any:
    data = tf.data.Dataset.from_tensor_slices((VX, VY)).map(lambda x, y: (2 * x - 1, y)).shuffle(20, seed=3).batch(9)
    return fit(compiled(), validation_data=data)


@case
def unknown_length() -> Any:
    data = tf.data.Dataset.from_tensor_slices((VX, VY)).filter(lambda x, y: y > 0).batch(4, drop_remainder=True)
    return fit(compiled(), validation_data=data)


@case
def shorter_than_said() -> Any:
    data = tf.data.Dataset.from_tensor_slices((VX, VY)).batch(20)
    return fit(compiled(), validation_data=data, validation_steps=2)


@case
def generated_here() -> Any:
    def batches() -> Iterator[Any]:
        while True:
            yield VX[:20], VY[:20]

    return fit(compiled(), validation_data=batches(), validation_steps=2)


@case
def several_steps_a_call() -> Any:
    return fit(compiled(steps_per_execution=2), validation_data=(VX, VY))


@case
def two_outputs() -> Any:
    inputs = keras.Input((6,), name="x")
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.3}, metrics={"a": ["mae"]})
    targets = ({"a": x.sum(axis=1), "b": x[:, 0]} for x in (X, VX))
    y, vy = targets
    return fit(model, y=y, validation_data=({"x": VX}, vy))


@case
def recurrent_and_masked() -> Any:
    words, more = (RNG.integers(0, 9, (n, 5)) for n in (90, 47))
    model = compiled(
        keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Embedding(9, 4, mask_zero=True),
                keras.layers.GRU(3),
                keras.layers.Dense(2),
            ]
        )
    )
    return fit(model, words, validation_data=(more, VY))


@case
def fits_in_turn() -> Any:
    model = compiled()
    first = fit(model, validation_data=(VX, VY))
    model.evaluate(VX, VY, verbose=0)
    second = fit(model, validation_data=(VX[:30], VY[:30]))
    model = compiled(model, metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")])
    third = fit(model, validation_data=(VX, VY))
    on_batch = model.test_on_batch(VX, VY)
    return {f"{number} {k}": v for number, each in enumerate((first, second, third)) for k, v in each.items()} | {
        "on_batch": on_batch,
        "metrics": [float(value) for value in model.evaluate(X, Y, verbose=0)],
    }


class Own(keras.Model):
    """A test_step of its own: other figures, among them one that is no metric's."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.hidden(x))

    def test_step(self, data: Any) -> Any:
        print("traces")
        x = data[0]
        y_pred = self(x, training=False)
        self.more(x)
        return {**super().test_step(data), "largest": tf.reduce_max(tf.nn.softmax(y_pred))}

    def more(self, x: Any) -> None:
        """What a step does besides."""


@case
def own_test_step() -> Any:
    return fit(compiled(Own()), validation_data=(VX, VY))


@case
def own_test_step_that_counts_here() -> Any:
    class Counts(Own):
        def more(self, x: Any) -> None:
            self.count.assign_add(1.0)

    model = compiled(Counts())
    history = fit(model, validation_data=(VX, VY))
    return {**history, "count": float(np.asarray(model.count))}


@case
def own_test_step_that_draws_here() -> Any:
    class Draws(Own):
        def more(self, x: Any) -> None:
            print("drawn in Python", random.random(), np.random.random())
            self.hidden(x + tf.random.normal(tf.shape(x)))

    fitted = fit(compiled(Draws()), validation_data=(VX, VY))
    return {**fitted, "next": [random.random(), np.random.random()]}


@case
def own_evaluate_here() -> Any:
    class Evaluates(Own):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            logs = super().evaluate(*args, **kwargs)
            return {**logs, "norm": float(np.abs(self.get_weights()[0]).sum())}

    return fit(compiled(Evaluates()), validation_data=(VX, VY))


@case
def eager_here() -> Any:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    return fit(compiled(model, run_eagerly=True), validation_data=(VX, VY), epochs=2)


@case
def evaluated_in_a_callback() -> Any:
    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            print("evaluated", [f"{value:.5f}" for value in self.model.evaluate(X, Y, verbose=0)])
            print("predicted", f"{self.model.predict(VX, verbose=0).sum():.4f}")

    return fit(compiled(), validation_data=(VX, VY), callbacks=[Evaluates()])


def main() -> None:
    figures = {}
    for name in ARGUMENTS.cases or CASES:
        keras.backend.clear_session()
        keras.utils.set_random_seed(7)
        print("case", name, flush=True)
        figures[name] = {k: np.asarray(v, "float64").tolist() for k, v in CASES[name]().items()}
        print(name, list(figures[name]), flush=True)
    ARGUMENTS.out.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
