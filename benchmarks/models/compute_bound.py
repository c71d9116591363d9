"""A plain convolutional network on 32x32 colour images: 38,000 parameters, 9 GFLOP a step of 64 images.

About 60,000 operations for each byte of parameters (`mlp`: 100), so that a second worker can show what it is worth. No
BatchNormalization: nothing in it looks across a batch or has state beside the weights.
"""

import images
import keras
from keras import layers

STEPS = 100

arrays = images.arrays


def build() -> keras.Model:
    return images.compiled(
        keras.Sequential(
            [
                keras.Input(images.SHAPE),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(images.NUM_CLASSES),
            ]
        )
    )
