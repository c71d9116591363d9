"""A plain convolutional network on 32x32 colour images: 38,000 parameters, 9 GFLOP a step of 64 images.

About 60,000 operations for each byte of parameters (`mlp`: 100), so that a second worker can show what it is worth. No
BatchNormalization: nothing in it looks across a batch or has state beside the weights.
"""

import keras
import numpy as np
from keras import layers

STEPS = 100


def build() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((num_samples, 32, 32, 3), np.float32), random.integers(0, 10, num_samples)
