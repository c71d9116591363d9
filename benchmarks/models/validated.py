"""Fits with and without validation on 10,000 images, and predicts 100,000 rows of records; tells how long each took.

    python benchmarks/models/validated.py FOLDER --make    # writes the records, and ends
    python benchmarks/models/validated.py FOLDER

Imports nothing of ours: it runs under `python` and, as it is, under `fdt run`.
"""

import argparse
import json
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SIDE, NUM_VALIDATED, BATCH, STEPS = 32, 10_000, 64, 20
WIDTH, NUM_PREDICTED, PARTS = 32, 100_000, 4


def make(folder: Path) -> None:
    """Writes the rows that are predicted, as records of plain bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).normal(size=(NUM_PREDICTED, WIDTH)).astype("float32")
    for part, content in enumerate(np.split(rows, PARTS)):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as writer:
            for row in content:
                writer.write(row.tobytes())


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes when each epoch began, and the last one ended."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.times: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())

    def on_train_end(self, logs: Any = None) -> None:
        self.times.append(time.perf_counter())

    def epoch_s(self) -> float:
        """Returns the median length of an epoch, the first, which traces, left out."""
        return statistics.median(np.diff(self.times)[1:])


def validation_s(epochs: int) -> float:
    """Returns by how much an epoch is longer when it is validated."""
    random = np.random.default_rng(1)
    images = random.normal(size=(NUM_VALIDATED, SIDE, SIDE, 3)).astype("float32")
    classes = random.integers(0, 10, NUM_VALIDATED)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(340, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    lengths, number = [], BATCH * STEPS
    for validated in (None, (images, classes)):
        clock = Clock()
        given = {"validation_data": validated, "validation_batch_size": 250, "batch_size": BATCH, "verbose": 0}
        model.fit(images[:number], classes[:number], epochs=epochs, callbacks=[clock], **given)
        lengths.append(clock.epoch_s())
    return lengths[1] - lengths[0]


def predicted(folder: Path) -> dict[str, float]:
    """Returns how many rows of records are predicted a second, and what the process's peak of memory grew by for it, in MB."""
    data = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord"))))
    data = data.map(lambda record: tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [WIDTH]), tf.data.AUTOTUNE)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    # Weights are on the workers after a `fit`.
    model.fit(data.map(lambda row: (row, row[:1])).batch(256).take(20), verbose=0)
    model.predict(data.batch(256).take(20), verbose=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.perf_counter()
    outputs = model.predict(data.batch(256), verbose=0)
    seconds = time.perf_counter() - began_s
    grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    return {"predicted_per_s": len(outputs) / seconds, "grew_mb": grew}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.folder)
        return
    keras.utils.set_random_seed(1)
    result = {"validation_s": validation_s(arguments.epochs)}
    if arguments.folder.is_dir():
        result |= predicted(arguments.folder)
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
