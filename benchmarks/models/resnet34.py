"""ResNet-34 (He et al. 2015, arXiv:1512.03385) for 32x32 images: 21,299,146 parameters, 85.1 MB of gradients.

Of the parameters 21,282,122 are trained; the others are statistics of BatchNormalization. Sixteen blocks of two convolutions as
published. The first convolution is 3x3 with stride 2, and no pool follows it. `cnn` is narrow and shallow beside it.
"""

from __future__ import annotations

import images
import keras
from keras import layers

STEPS = 20

# Filters and blocks of each stage.
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))

arrays = images.arrays


def _convolution(x: keras.KerasTensor, filters: int, size: int, strides: int) -> keras.KerasTensor:
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    return layers.BatchNormalization()(x)


def _block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    shortcut = x if strides == 1 else _convolution(x, filters, 1, strides)
    x = layers.ReLU()(_convolution(x, filters, 3, strides))
    return layers.ReLU()(layers.Add()([_convolution(x, filters, 3, 1), shortcut]))


def build() -> keras.Model:
    inputs = keras.Input(images.SHAPE)
    x = layers.ReLU()(_convolution(inputs, 64, 3, 2))
    for stage, (filters, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            x = _block(x, filters, strides=2 if stage > 0 and block == 0 else 1)
    return images.compiled(keras.Model(inputs, layers.Dense(images.NUM_CLASSES)(layers.GlobalAveragePooling2D()(x))))
