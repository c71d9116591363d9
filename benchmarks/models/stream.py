"""Trains a tiny model on data that come batch by batch, and only iterates over the same data, in turn. Imports nothing of ours.

python benchmarks/models/stream.py generator --batches 500 --rounds 5
"""

import argparse
import json
import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

# 1 MB a batch, but for 4 bytes of a target a row.
ROWS, FEATURES = 250, 1000
SIGNATURE = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None, 1], tf.float32))


def generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows of a large array without end: as little work as a script can have."""
    x = np.random.default_rng(0).random((40 * ROWS, FEATURES), np.float32)
    y = np.ones((ROWS, 1), np.float32)
    while True:
        for start in range(0, len(x), ROWS):
            yield x[start : start + ROWS].copy(), y


def dataset() -> tf.data.Dataset:
    """Returns batches that TensorFlow takes from a large array, without end."""
    x = np.random.default_rng(0).random((40 * ROWS, FEATURES), np.float32)
    y = np.ones((len(x), 1), np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS).repeat().prefetch(tf.data.AUTOTUNE)


def as_keras_does(source: str) -> tf.data.Dataset:
    """Returns the data as Keras's own loop takes them."""
    if source == "dataset":
        return dataset()
    return tf.data.Dataset.from_generator(generator, output_signature=SIGNATURE).prefetch(tf.data.AUTOTUNE)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("generator", "dataset"))
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    endless, iterator = (
        dataset() if arguments.source == "dataset" else generator(),
        iter(as_keras_does(arguments.source)),
    )
    # Start-up is nobody's rate.
    model.fit(endless, steps_per_epoch=50, verbose=0)
    iterated, fitted = [], []
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        for _ in range(arguments.batches):
            next(iterator)
        iterated.append(arguments.batches / (time.perf_counter() - start))
        start = time.perf_counter()
        model.fit(endless, steps_per_epoch=arguments.batches, verbose=0)
        fitted.append(arguments.batches / (time.perf_counter() - start))
    print("RESULT", json.dumps({"iterated_per_s": iterated, "fitted_per_s": fitted}), flush=True)


if __name__ == "__main__":
    main()
