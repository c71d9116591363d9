"""Fits a model whose table has any number of rows, with plain Keras, and prints how many steps a second it made.

Imports nothing of ours: it runs under `python` and, as it is, under `fdt run`.

    python benchmarks/models/rows.py --rows 200000
    python benchmarks/lab --hosts 2 --bandwidth 1Gbit --traffic -- --mode async --ps 2 --report r.json benchmarks/models/rows.py
"""

import argparse
import json
import time

import keras
import numpy as np

LENGTH, WIDTH, BATCH = 20, 64, 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="of the table")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--optimizer", default="adam", help="by Keras's name")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(1)
    layers = [keras.Input((LENGTH,), dtype="int32"), keras.layers.Embedding(arguments.rows, WIDTH)]
    layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(arguments.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    x = random.integers(0, arguments.rows, (arguments.steps * BATCH, LENGTH), np.int32)
    y = random.integers(0, 2, arguments.steps * BATCH)
    # The first epoch compiles.
    model.fit(x[: 4 * BATCH], y[: 4 * BATCH], batch_size=BATCH, verbose=0)
    began_s = time.perf_counter()
    loss = model.fit(x, y, batch_size=BATCH, verbose=0).history["loss"][-1]
    seconds = time.perf_counter() - began_s
    print("RESULT", json.dumps({"rows": arguments.rows, "steps_per_s": arguments.steps / seconds, "loss": loss}))


if __name__ == "__main__":
    main()
