"""Trains a tiny model on data that come batch by batch, and only iterates over the same data, in turn. Imports nothing of ours.

python benchmarks/models/stream.py generator --batches 500 --rounds 5 --rows 1
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial

import keras
import numpy as np
import tensorflow as tf

# 4 kB a row, and 4 bytes of a target.
FEATURES = 1000
NUM_ROWS = 10_000
SIGNATURE = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None, 1], tf.float32))


def generator(batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of a large array without end: as little work as a script can have."""
    x = np.random.default_rng(0).random((NUM_ROWS, FEATURES), np.float32)
    y = np.ones((batch_size, 1), np.float32)
    while True:
        for start in range(0, len(x), batch_size):
            yield x[start : start + batch_size].copy(), y


def dataset(batch_size: int) -> tf.data.Dataset:
    """Returns batches that TensorFlow takes from a large array, without end. A pool is sent the array, and row numbers."""
    x = np.random.default_rng(0).random((NUM_ROWS, FEATURES), np.float32)
    y = np.ones((len(x), 1), np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).repeat().prefetch(tf.data.AUTOTUNE)


def mapped(batch_size: int) -> tf.data.Dataset:
    """Returns batches of rows that TensorFlow makes other ones of, at random, without end: what a script does with images."""
    x = np.random.default_rng(0).integers(0, 256, (NUM_ROWS, FEATURES), np.uint8)
    y = np.ones((len(x), 1), np.float32)

    def brighter(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(x, tf.float32) / 255.0 + tf.random.uniform([], maxval=0.1), y

    rows = tf.data.Dataset.from_tensor_slices((x, y)).map(brighter, tf.data.AUTOTUNE)
    return rows.batch(batch_size).repeat().prefetch(tf.data.AUTOTUNE)


def as_keras_does(source: str, batch_size: int) -> tf.data.Dataset:
    """Returns the data as Keras's own loop takes them; of arrays, the data set of their batches."""
    if source == "mapped":
        return mapped(batch_size)
    if source in ("dataset", "arrays"):
        return dataset(batch_size)
    batches = tf.data.Dataset.from_generator(partial(generator, batch_size), output_signature=SIGNATURE)
    return batches.prefetch(tf.data.AUTOTUNE)


def fit_endless(model: keras.Model, source: str, batch_size: int) -> Callable[[int], object]:
    """Returns what fits on so many batches of a source without end."""
    endless = {"dataset": dataset, "mapped": mapped, "generator": generator}[source](batch_size)
    return lambda batches: model.fit(endless, steps_per_epoch=batches, verbose=0)


def fit_arrays(model: keras.Model, batch_size: int) -> Callable[[int], object]:
    """Returns what fits on so many batches of arrays, in whole epochs."""
    x = np.random.default_rng(0).random((NUM_ROWS, FEATURES), np.float32)
    y = np.ones((len(x), 1), np.float32)
    return lambda batches: model.fit(
        x, y, batch_size=batch_size, epochs=max(1, batches * batch_size // NUM_ROWS), verbose=0
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("generator", "mapped", "dataset", "arrays"))
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=250, help="of a batch")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    iterator = iter(as_keras_does(arguments.source, arguments.rows))
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if arguments.source == "arrays":
        fit = fit_arrays(model, arguments.rows)
    else:
        fit = fit_endless(model, arguments.source, arguments.rows)
    # Start-up is nobody's rate.
    fit(50)
    iterated, fitted = [], []
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        for _ in range(arguments.batches):
            next(iterator)
        iterated.append(arguments.batches / (time.perf_counter() - start))
        start = time.perf_counter()
        fit(arguments.batches)
        fitted.append(arguments.batches / (time.perf_counter() - start))
    print("RESULT", json.dumps({"iterated_per_s": iterated, "fitted_per_s": fitted}), flush=True)


if __name__ == "__main__":
    main()
