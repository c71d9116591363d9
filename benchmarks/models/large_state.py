"""Trains a model whose variables and moments take as much memory as it is told, and prints its losses."""

import argparse
import json
import time

import keras
import numpy as np

_ROWS, _STEPS_AN_EPOCH = 32, 2


def num_layers(num_bytes: int, width: int) -> int:
    """Returns how many dense layers have so many bytes, with Adam's moments."""
    return max(1, num_bytes // (3 * 4 * width * width))


def dense(num_bytes: int, width: int, layers: int | None) -> tuple[keras.Model, list[np.ndarray]]:
    """Layers that are as wide as they are long; small weights, so that many in a row do no harm."""
    inputs = outputs = keras.Input((width,))
    for _ in range(layers or num_layers(num_bytes, width)):
        outputs = outputs + keras.layers.Dense(width, "tanh", kernel_initializer="he_normal")(outputs) * 0.1
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    return model, [np.random.default_rng(0).normal(size=(_ROWS * _STEPS_AN_EPOCH, width)).astype("float32")]


def towers(num_bytes: int, width: int, _: int | None) -> tuple[keras.Model, list[np.ndarray]]:
    """Two towers over a table each, of rows of 64 numbers."""
    num_rows = num_bytes // (3 * 4 * 64 * 2)
    inputs = [keras.Input((20,), dtype="int32") for _ in range(2)]
    sides = []
    for given in inputs:
        rows = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(num_rows, 64)(given))
        sides.append(keras.layers.Dense(64)(keras.layers.Dense(width, "relu")(rows)))
    random = np.random.default_rng(0)
    ids = [random.integers(0, num_rows, (_ROWS * _STEPS_AN_EPOCH, 20)).astype("int32") for _ in range(2)]
    return keras.Model(inputs, keras.layers.Dot(1)(sides)), ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("dense", "towers"))
    parser.add_argument("--megabytes", type=int, default=600, help="of variables and Adam's moments (default: 600)")
    parser.add_argument("--width", type=int, default=1024, help="of dense layers (default: 1024)")
    parser.add_argument(
        "--layers", type=int, help="so many dense layers, of whatever size (default: what the megabytes make)"
    )
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    build = {"dense": dense, "towers": towers}[options.kind]
    model, x = build(options.megabytes * 1_000_000, options.width, options.layers)
    model.compile(keras.optimizers.Adam(1e-5), "mse")
    y = np.random.default_rng(1).normal(size=(len(x[0]), 1)).astype("float32")
    began_s = time.time()
    history = model.fit(x, y, batch_size=_ROWS, epochs=options.epochs, verbose=0, shuffle=False).history["loss"]
    trained_s = time.time()
    total = sum(float(np.abs(np.asarray(v, "float64")).sum()) for v in [*model.weights, *model.optimizer.variables])
    print("RESULT", json.dumps({"losses": history, "sum": total, "fit_seconds": trained_s - began_s}))


if __name__ == "__main__":
    main()
