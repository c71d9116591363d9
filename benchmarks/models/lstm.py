"""A classifier of padded texts, two masked bidirectional LSTMs: loops of 60 words, and as many again for the gradients."""

import keras
import numpy as np

STEPS = 30
NUM_WORDS = 5_000
LENGTH = 60


def build() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(NUM_WORDS, 64, mask_zero=True),
            keras.layers.Bidirectional(keras.layers.LSTM(128, return_sequences=True)),
            keras.layers.Bidirectional(keras.layers.LSTM(128)),
            keras.layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    words = random.integers(1, NUM_WORDS, (num_samples, LENGTH), np.int32)
    lengths = random.integers(20, LENGTH + 1, (num_samples, 1))
    return np.where(np.arange(LENGTH) < lengths, words, 0), random.integers(0, 2, num_samples)
