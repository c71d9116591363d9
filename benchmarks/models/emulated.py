"""Layers of which an accelerator is emulated: each waits as long as it would compute, twice as long backwards.

EMULATED_LAYERS layers of EMULATED_MB megabytes of weights each, and EMULATED_MS milliseconds forwards. A batch has a row for
each worker, so that the processor has little to do but to exchange gradients.
"""

import os
from typing import Any

import keras
import numpy as np
import operation
import tensorflow as tf

STEPS = 20

_LAYERS = int(os.environ.get("EMULATED_LAYERS", "10"))
_WEIGHTS = int(float(os.environ.get("EMULATED_MB", "4")) * 1e6 / 4)
_MICROSECONDS = round(float(os.environ.get("EMULATED_MS", "10")) * 1e3)
_operations = operation.loaded()


@tf.RegisterGradient("EmulatedLayer")
def _backwards(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return _operations.emulated_layer(gradient, microseconds=2 * op.get_attr("microseconds"))


class Emulated(keras.layers.Layer):
    """Adds its weights to its input."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(_WEIGHTS,), initializer="zeros")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return _operations.emulated_layer(x + self.w, microseconds=_MICROSECONDS)


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), *(Emulated() for _ in range(_LAYERS))])
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def arrays(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((num_samples, 1), np.float32), np.ones((num_samples, 1), np.float32)
