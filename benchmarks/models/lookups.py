"""A classifier of sets of 20 ids over a table of LOOKUP_ROWS x 64, trained by the optimizer LOOKUP_OPTIMIZER of Keras."""

import os

import keras
import numpy as np

STEPS = 50
NUM_ROWS = int(os.environ.get("LOOKUP_ROWS", "200000"))
LENGTH = 20


def build() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(NUM_ROWS, 64),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    optimizer = getattr(keras.optimizers, os.environ.get("LOOKUP_OPTIMIZER", "Adam"))(1e-3)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, NUM_ROWS, (num_samples, LENGTH), np.int32), random.integers(0, 2, num_samples)
