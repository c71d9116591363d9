"""A vision transformer (Dosovitskiy et al., 2021, arXiv:2010.11929) of 2.7 million parameters on 32x32 colour images."""

import images
import keras
from keras import layers

STEPS = 50
_PATCH, _WIDTH, _DEPTH, _HEADS = 4, 192, 6, 3

arrays = images.arrays


class Positions(layers.Layer):
    """Adds what tells one place from another."""

    def build(self, shape: tuple[int, ...]) -> None:
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.positions = self.add_weight(shape=(1, *shape[1:]), initializer=normal, name="positions")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.positions


def build() -> keras.Model:
    inputs = keras.Input(images.SHAPE)
    x = layers.Conv2D(_WIDTH, _PATCH, _PATCH)(inputs)
    x = Positions()(layers.Reshape((-1, _WIDTH))(x))
    for _ in range(_DEPTH):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(normal, normal)
        hidden = layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(_WIDTH)(layers.Dropout(0.1)(hidden))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return images.compiled(keras.Model(inputs, layers.Dense(images.NUM_CLASSES)(x)))
