"""SqueezeNet 1.1 (Iandola et al. 2016, arXiv:1602.07360) for 32x32 images: 727,626 parameters, 2.9 MB of gradients.

Eight fire modules as published. The first convolution keeps the size of the image, and there is no dropout, so that a run on
several workers can be compared with one.
"""

from __future__ import annotations

import images
import keras
from keras import layers

STEPS = 50

arrays = images.arrays


def _convolution(x: keras.KerasTensor, filters: int, size: int) -> keras.KerasTensor:
    return layers.Conv2D(filters, size, padding="same", activation="relu", kernel_initializer="he_normal")(x)


def _fire(x: keras.KerasTensor, squeezed: int, expanded: int) -> keras.KerasTensor:
    x = _convolution(x, squeezed, 1)
    return layers.Concatenate()([_convolution(x, expanded, 1), _convolution(x, expanded, 3)])


def build() -> keras.Model:
    inputs = keras.Input(images.SHAPE)
    x = layers.MaxPooling2D(3, 2, padding="same")(_convolution(inputs, 64, 3))
    for squeezed, expanded in ((16, 64), (32, 128)):
        x = _fire(_fire(x, squeezed, expanded), squeezed, expanded)
        x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for squeezed, expanded in ((48, 192), (48, 192), (64, 256), (64, 256)):
        x = _fire(x, squeezed, expanded)
    # As published the classes come from a convolution, and there is no dense layer.
    logits = layers.GlobalAveragePooling2D()(layers.Conv2D(images.NUM_CLASSES, 1)(x))
    return images.compiled(keras.Model(inputs, logits))
