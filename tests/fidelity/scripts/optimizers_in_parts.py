"""Trains a net with a table by each optimizer of Keras in turn, and writes losses and variables of each to OUT/<name>.npz.

The table, a layer's weights and what optimizers keep for them are large enough for workers to hold them in parts.
"""

import argparse
import os
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
from tensorflow import keras

_ROWS, _SAMPLES, _BATCH = 3_000, 72, 24
_OPTIMIZERS = keras.optimizers
Make = Callable[[], keras.optimizers.Optimizer]

OF_BOTH: Mapping[str, Make] = {
    "Adadelta": lambda: _OPTIMIZERS.Adadelta(0.5),
    "Adafactor": lambda: _OPTIMIZERS.Adafactor(0.01),
    "Adagrad": lambda: _OPTIMIZERS.Adagrad(0.05),
    "Adam_amsgrad_clipvalue": lambda: _OPTIMIZERS.Adam(0.01, amsgrad=True, clipvalue=0.001),
    "Adam_clipnorm": lambda: _OPTIMIZERS.Adam(0.01, clipnorm=0.01),
    "Adam_global_clipnorm": lambda: _OPTIMIZERS.Adam(0.01, global_clipnorm=0.01),
    "AdamW_averaged": lambda: _OPTIMIZERS.AdamW(0.01, use_ema=True, ema_momentum=0.9),
    "Adamax": lambda: _OPTIMIZERS.Adamax(0.01),
    "Ftrl": lambda: _OPTIMIZERS.Ftrl(0.05),
    "Lion": lambda: _OPTIMIZERS.Lion(0.001),
    "Nadam": lambda: _OPTIMIZERS.Nadam(0.01),
    "RMSprop_centered": lambda: _OPTIMIZERS.RMSprop(0.01, centered=True, momentum=0.5),
    "SGD_decayed": lambda: _OPTIMIZERS.SGD(0.05, weight_decay=0.01),
    "SGD_nesterov": lambda: _OPTIMIZERS.SGD(0.05, momentum=0.9, nesterov=True),
    "loss_scaled": lambda: _OPTIMIZERS.LossScaleOptimizer(_OPTIMIZERS.SGD(0.05, momentum=0.9)),
}
OF_KERAS_3: Mapping[str, Make] = {
    **OF_BOTH,
    "Adam_accumulated": lambda: _OPTIMIZERS.Adam(0.01, gradient_accumulation_steps=2),
    "Lamb": lambda: _OPTIMIZERS.Lamb(0.01),
    "Muon": lambda: _OPTIMIZERS.Muon(0.01),
}
OF_KERAS_2: Mapping[str, Make] = {
    **{name: make for name, make in OF_BOTH.items() if name != "loss_scaled"},
    "older_Adadelta": lambda: _OPTIMIZERS.legacy.Adadelta(0.5),
    "older_Adagrad": lambda: _OPTIMIZERS.legacy.Adagrad(0.05),
    "older_Adam_amsgrad": lambda: _OPTIMIZERS.legacy.Adam(0.01, amsgrad=True),
    "older_Adam_clipnorm": lambda: _OPTIMIZERS.legacy.Adam(0.01, clipnorm=0.01),
    "older_Adam_global_clipnorm": lambda: _OPTIMIZERS.legacy.Adam(0.01, global_clipnorm=0.01),
    "older_Adamax": lambda: _OPTIMIZERS.legacy.Adamax(0.01),
    "older_Ftrl": lambda: _OPTIMIZERS.legacy.Ftrl(0.05),
    "older_Nadam": lambda: _OPTIMIZERS.legacy.Nadam(0.01),
    "older_RMSprop_centered": lambda: _OPTIMIZERS.legacy.RMSprop(0.01, centered=True, momentum=0.5),
    "older_SGD_nesterov": lambda: _OPTIMIZERS.legacy.SGD(0.05, momentum=0.9, nesterov=True),
    "loss_scaled": lambda: keras.mixed_precision.LossScaleOptimizer(_OPTIMIZERS.SGD(0.05, momentum=0.9)),
}
OPTIMIZERS = OF_KERAS_2 if os.environ.get("TF_USE_LEGACY_KERAS") else OF_KERAS_3


def trained(make: Make) -> dict[str, np.ndarray]:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(_ROWS, 8), keras.layers.Flatten(), keras.layers.Dense(512, "tanh")]
    net = keras.Sequential([keras.Input((5,), dtype="int32"), *layers, keras.layers.Dense(1)])
    optimizer = make()
    net.compile(optimizer, "mse")
    random = np.random.default_rng(0)
    ids, y = random.integers(0, _ROWS, (_SAMPLES, 5), np.int32), random.normal(size=(_SAMPLES, 1)).astype("float32")
    fitted = net.fit(ids, y, batch_size=_BATCH, epochs=2, verbose=0)
    # A property or, of the older ones, a method.
    kept = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    values = {"losses": np.array(fitted.history["loss"])}
    return values | {f"{i} {v.name}": np.asarray(v) for i, v in enumerate([*net.weights, *kept])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--optimizers", nargs="*", default=list(OPTIMIZERS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.optimizers:
        print(f"optimizer {name}", flush=True)
        np.savez(
            options.out / name, **{key.replace("/", "."): array for key, array in trained(OPTIMIZERS[name]).items()}
        )


if __name__ == "__main__":
    main()
