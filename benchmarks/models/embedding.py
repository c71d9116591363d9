"""A text classifier that averages word vectors: a table of 50,000 x 64, of which a step touches a part."""

import keras
import numpy as np

STEPS = 200
NUM_WORDS = 50_000
LENGTH = 128


def build() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(NUM_WORDS, 64),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, NUM_WORDS, (num_samples, LENGTH), np.int32), random.integers(0, 2, num_samples)
