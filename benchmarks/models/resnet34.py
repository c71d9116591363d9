"""ResNet-34 (He et al. 2016, table 1) on 32x32 colour images: 36 layers of BatchNormalization."""

from __future__ import annotations

import images
import keras
from keras import layers

STEPS = 10

arrays = images.arrays


def _convolution(x: keras.KerasTensor, filters: int, size: int, strides: int) -> keras.KerasTensor:
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def _block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    is_alike = strides == 1 and x.shape[-1] == filters
    shortcut = x if is_alike else _convolution(x, filters, 1, strides)
    x = layers.ReLU()(_convolution(x, filters, 3, strides))
    return layers.ReLU()(layers.Add()([_convolution(x, filters, 3, 1), shortcut]))


def build() -> keras.Model:
    inputs = keras.Input(images.SHAPE)
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(_convolution(inputs, 64, 7, 2)))
    for stage, (filters, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            x = _block(x, filters, strides=2 if stage > 0 and block == 0 else 1)
    return images.compiled(keras.Model(inputs, layers.Dense(images.NUM_CLASSES)(layers.GlobalAveragePooling2D()(x))))
