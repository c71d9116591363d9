"""Small models with the layers of Keras, each with its data: their own `train_step` is what is divided."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

CLASSES = 4
Build = Callable[[], keras.Model]
MODELS: dict[str, tuple[tuple[int, ...], Build]] = {}


def model(*shape: int) -> Callable[[Build], Build]:
    """Registers a model whose samples have this shape."""

    def register(build: Build) -> Build:
        MODELS[build.__name__] = shape, build
        return build

    return register


def batches(shape: tuple[int, ...], rows: int, count: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(5)
    return [
        (random.normal(size=(rows, *shape)).astype("float32"), random.integers(0, CLASSES, rows).astype("int64"))
        for _ in range(count)
    ]


def _compiled(net: keras.Model, optimizer: Any = None) -> keras.Model:
    net.compile(
        optimizer or keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    return net


@model(8)
def dense_with_dropout() -> keras.Model:
    body = [layers.Dense(16, "relu", kernel_regularizer="l2"), layers.Dropout(0.3), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((8,)), *body]), keras.optimizers.Adam(1e-3, clipnorm=1.0))


@model(8)
def batch_normalization() -> keras.Model:
    body = [layers.Dense(16, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((8,)), *body]))


@model(12, 12, 3)
def convolutional() -> keras.Model:
    given = layers.Input((12, 12, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(given)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D()(x)
    x = layers.add([x, layers.DepthwiseConv2D(3, padding="same")(x)])
    x = layers.GroupNormalization(2)(layers.SeparableConv2D(8, 3, strides=2)(x))
    x = layers.SpatialDropout2D(0.2)(x)
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))))


@model(16, 16, 2)
def u_net() -> keras.Model:
    given = layers.Input((16, 16, 2))
    a = layers.Conv2D(4, 3, padding="same", activation="relu")(given)
    b = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(a))
    up = layers.Concatenate()([a, layers.Conv2DTranspose(4, 2, strides=2)(b)])
    up = layers.AveragePooling2D(2)(layers.UpSampling2D(interpolation="bilinear")(up))
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(layers.Flatten()(up))))


@model(6, 6, 6, 2)
def volumes() -> keras.Model:
    body = [layers.Conv3D(4, 3, activation="relu"), layers.MaxPooling3D(), layers.Flatten(), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((6, 6, 6, 2)), *body]))


@model(10, 3)
def sequence_convolutions() -> keras.Model:
    body = [
        layers.Conv1D(6, 3, padding="causal", activation="relu"),
        layers.MaxPooling1D(),
        layers.GlobalMaxPooling1D(),
    ]
    return _compiled(keras.Sequential([layers.Input((10, 3)), *body, layers.Dense(CLASSES)]))


@model(6, 8)
def transformer() -> keras.Model:
    given = layers.Input((6, 8))
    x = layers.LayerNormalization()(given + layers.MultiHeadAttention(2, 4, dropout=0.1, use_bias=False)(given, given))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, "gelu")(x)))
    x = x + layers.MultiHeadAttention(2, 4, use_bias=False)(x, x, use_causal_mask=True)
    return _compiled(
        keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))), keras.optimizers.AdamW()
    )


@model(5, 8)
def recurrent() -> keras.Model:
    body = [
        layers.LSTM(6, return_sequences=True, dropout=0.2),
        layers.Bidirectional(layers.GRU(5)),
        layers.Dense(CLASSES),
    ]
    return _compiled(keras.Sequential([layers.Input((5, 8)), *body]))


@model(5, 8)
def masked_backwards() -> keras.Model:
    body = [layers.Masking(), layers.SimpleRNN(6, go_backwards=True), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((5, 8)), *body]))


@model(7)
def words() -> keras.Model:
    given = layers.Input((7,))
    numbers = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 4, "int32") % 11)(given)
    x = layers.GlobalAveragePooling1D()(layers.Embedding(11, 6)(numbers))
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(x)), keras.optimizers.Adam(1e-3))


@model(8)
def spectral() -> keras.Model:
    body = [layers.SpectralNormalization(layers.Dense(16, "relu")), layers.UnitNormalization(), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((8,)), *body]))
