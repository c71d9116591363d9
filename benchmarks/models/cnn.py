"""A narrow residual network on 32x32 colour images: 107 variables, many operations per byte to exchange."""

# Annotations stay text: Keras 2, under which a peer trains this model too, has no keras.KerasTensor.
from __future__ import annotations

import keras
import numpy as np
from keras import layers

STEPS = 100


def _convolution(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def _block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    shortcut = x if strides == 1 else _convolution(x, filters, strides)
    x = layers.ReLU()(_convolution(x, filters, strides))
    return layers.ReLU()(layers.Add()([_convolution(x, filters, 1), shortcut]))


def build() -> keras.Model:
    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(_convolution(inputs, 16, 2))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            x = _block(x, filters, strides=2 if stage > 0 and block == 0 else 1)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((num_samples, 32, 32, 3), np.float32), random.integers(0, 10, num_samples)
