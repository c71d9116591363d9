"""GoogLeNet (Inception v1, Szegedy et al. 2014, arXiv:1409.4842) for 32x32 images: 5,976,122 parameters, 23.9 MB of gradients.

Nine inception modules as published. The first convolution is 3x3 and keeps the size of the image. Without the two auxiliary
classifiers, without local response normalisation, which has no parameters, and without dropout, so that a run on
several workers can be compared with one.
"""

from __future__ import annotations

import images
import keras
from keras import layers

STEPS = 30

# Of each module: filters of 1x1; reduction to and filters of 3x3; the same of 5x5; of the 1x1 after the pool.
_MODULES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)

arrays = images.arrays


def _convolution(x: keras.KerasTensor, filters: int, size: int) -> keras.KerasTensor:
    return layers.Conv2D(filters, size, padding="same", activation="relu", kernel_initializer="he_normal")(x)


def _inception(x: keras.KerasTensor, filters: tuple[int, ...]) -> keras.KerasTensor:
    one, reduced_three, three, reduced_five, five, pooled = filters
    return layers.Concatenate()(
        [
            _convolution(x, one, 1),
            _convolution(_convolution(x, reduced_three, 1), three, 3),
            _convolution(_convolution(x, reduced_five, 1), five, 5),
            _convolution(layers.MaxPooling2D(3, 1, padding="same")(x), pooled, 1),
        ]
    )


def build() -> keras.Model:
    inputs = keras.Input(images.SHAPE)
    x = layers.MaxPooling2D(3, 2, padding="same")(_convolution(inputs, 64, 3))
    x = _convolution(_convolution(x, 64, 1), 192, 3)
    for stage in _MODULES:
        x = layers.MaxPooling2D(3, 2, padding="same")(x)
        for filters in stage:
            x = _inception(x, filters)
    return images.compiled(keras.Model(inputs, layers.Dense(images.NUM_CLASSES)(layers.GlobalAveragePooling2D()(x))))
