"""Fits a model of `convergence.py` with plain Keras and prints its test accuracy. Imports nothing of ours.

python benchmarks/convergence_fit.py digits --rate 0.05 --seed 1 --epochs 20
"""

import argparse
import json

import convergence_data
import keras
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    data = convergence_data.load(options.data)
    keras.utils.set_random_seed(options.seed)
    model = data.build()
    model.compile(
        keras.optimizers.SGD(options.rate, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(data.x_train, data.y_train, batch_size=32, epochs=options.epochs, verbose=0)
    logits = model.predict(data.x_test, verbose=0)
    right = np.isfinite(logits).all(axis=1) & (logits.argmax(axis=1) == data.y_test)
    print("RESULT", json.dumps({"accuracy": float(right.mean())}), flush=True)


if __name__ == "__main__":
    main()
