"""What a prediction is told of a step's exchanges: those of layers, and not those of gradients, which it counts itself."""

import keras
import numpy as np
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.train_step import trace_train_step
from fdt.capture.step.divided import layer_exchanges
from tests.helpers.programs import element_like

ROWS, WIDTH = 12, 6


def exchanges(model: keras.Model, relax: str = "") -> tuple[int, int]:
    model.compile(keras.optimizers.Adam(), "mse")
    x, y = tf.zeros([ROWS, WIDTH]), tf.zeros([ROWS, 1])
    config = RunConfig("train.py", num_workers=2, options={"relax": relax} if relax else {})
    step = trace_train_step(config, Keras3(), model, element_like((x, y)))
    return layer_exchanges(step, [array.shape for array in (x, y)], config)


def dense(*between: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(8), *between, keras.layers.Dense(1)])


def test_a_step_without_such_layers_has_none() -> None:
    assert exchanges(dense()) == (0, 0)


def test_a_layer_that_normalises_over_the_batch_exchanges_moments() -> None:
    count, num_bytes = exchanges(dense(keras.layers.BatchNormalization()))
    # Forward three vectors of eight numbers of each of two workers, together; backward two sums of such.
    assert count == 2
    assert num_bytes == (2 * 3 + 2) * 8 * np.dtype("float32").itemsize


def test_one_that_is_relaxed_has_none() -> None:
    assert exchanges(dense(keras.layers.BatchNormalization()), "batch-norm") == (0, 0)
