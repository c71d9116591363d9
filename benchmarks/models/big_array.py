"""Fits a small model twice on one large NumPy array. Imports nothing of ours.

A first, tiny fit takes the start-up costs (tracing, loading) out of the two that are looked at.

    python benchmarks/models/big_array.py --megabytes 200
"""

import argparse
import json
import time

import keras
import numpy as np

NUM_FEATURES = 1024
BATCH_SIZE = 512


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(1)
    num_samples = arguments.megabytes * 1_000_000 // (4 * NUM_FEATURES)
    x = np.random.default_rng(0).random((num_samples, NUM_FEATURES), np.float32)
    y = np.zeros(num_samples, np.float32)
    model = keras.Sequential([keras.Input((NUM_FEATURES,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    model.fit(x[:BATCH_SIZE].copy(), y[:BATCH_SIZE].copy(), batch_size=BATCH_SIZE, verbose=0)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)
        seconds.append(time.perf_counter() - start)
    print("RESULT", json.dumps({"array_bytes": x.nbytes, "fit_seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
