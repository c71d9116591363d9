"""Counts how often each row of an array has been trained on, and says after how many epochs that was not once each.

Imports nothing of ours: it runs under `python` and, as it is, under `fdt run`. With SGD at a rate of 1 and a gradient of 1 for
each row of a batch, a row's weight is how often it came, with a minus sign. Rules that change a gradient would spoil that.
With `--table` what counts is rows of a table that batches look up, as large as to be on several servers.

    python benchmarks/models/counted.py --epochs 50 --steps 2000
    python benchmarks/models/counted.py --epochs 50 --steps 2000 --table
"""

import argparse
import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 10
# Rows of the table that each row of a batch looks up, and their width.
_LOOKED_UP, _WIDTH = 27, 64


class Counted(keras.Model):
    """Its batch is numbers of rows. Two tensors count them, so that two servers have one each."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.seen = [self.add_weight(shape=(rows,), initializer="zeros", name=f"seen_{i}") for i in range(2)]

    def train_step(self, data: Any) -> dict[str, Any]:
        came = tf.math.unsorted_segment_sum(tf.ones([tf.size(data)]), data, self.seen[0].shape[0])
        self.optimizer.apply([came, came], self.seen)
        return {"rows": tf.cast(tf.size(data), tf.float32)}


def table(rows: int) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """Returns a model that looks up each row of a table once an epoch, and its data."""
    embedding = keras.layers.Embedding(rows * _LOOKED_UP, _WIDTH, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((_LOOKED_UP,), dtype="int32"), embedding])
    model.seen = [embedding.embeddings]
    return model, np.arange(rows * _LOOKED_UP, dtype="int32").reshape(rows, _LOOKED_UP), np.zeros(rows)


class Checked(keras.callbacks.Callback):
    """After each epoch."""

    wrong = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.wrong += not all(np.all(seen.numpy() == -(epoch + 1)) for seen in self.model.seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2000, help="of an epoch")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    num_rows, checked = options.steps * BATCH, Checked()
    if options.table:
        model, *data = table(num_rows)
        model.compile(keras.optimizers.SGD(1.0), lambda _, found: tf.reduce_sum(found))
    else:
        model, data = Counted(num_rows), [np.arange(num_rows)]
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(*data, batch_size=BATCH, epochs=options.epochs, callbacks=[checked], verbose=0)
    updates = int(model.optimizer.iterations)
    print("RESULT", json.dumps({"updates": updates, "wrong_epochs": checked.wrong}), flush=True)
    return 0 if checked.wrong == 0 and updates == options.epochs * options.steps else 1


if __name__ == "__main__":
    sys.exit(main())
