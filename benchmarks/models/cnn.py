"""A narrow residual network on 32x32 colour images: 107 variables, many operations per byte to exchange."""

# Annotations stay text: Keras 2, under which a peer trains this model too, has no keras.KerasTensor.
from __future__ import annotations

import images
import keras
from keras import layers

STEPS = 100

arrays = images.arrays


def _convolution(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def _block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    shortcut = x if strides == 1 else _convolution(x, filters, strides)
    x = layers.ReLU()(_convolution(x, filters, strides))
    return layers.ReLU()(layers.Add()([_convolution(x, filters, 1), shortcut]))


def build() -> keras.Model:
    inputs = keras.Input(images.SHAPE)
    x = layers.ReLU()(_convolution(inputs, 16, 2))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            x = _block(x, filters, strides=2 if stage > 0 and block == 0 else 1)
    return images.compiled(keras.Model(inputs, layers.Dense(images.NUM_CLASSES)(layers.GlobalAveragePooling2D()(x))))
