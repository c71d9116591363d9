"""What the networks for 32x32 colour images have in common: their data, and how they learn."""

# Annotations stay text: Keras 2, under which a peer trains some of these too, has no keras.KerasTensor.
from __future__ import annotations

import keras
import numpy as np

SHAPE = (32, 32, 3)
NUM_CLASSES = 10


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 [num_samples, 32, 32, 3] in [0, 1) and int64 [num_samples], classes: noise, the same each time."""
    random = np.random.default_rng(0)
    return random.random((num_samples, *SHAPE), np.float32), random.integers(0, NUM_CLASSES, num_samples)


def compiled(model: keras.Model) -> keras.Model:
    """Returns a network whose outputs are logits, ready to be fitted."""
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model
