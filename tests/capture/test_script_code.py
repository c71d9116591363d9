"""A step of Keras's own layers is traced once; where Python of the script's runs in it, as often as TensorFlow does it."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.train_step import trace_train_step
from tests.helpers.programs import element_like

Model = Callable[[], keras.Model]


class Own(keras.layers.Layer):
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + 0.0


class OwnModel(keras.Sequential):
    pass


class OwnRate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1


def own(*given: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(given[0])


def activation(x: tf.Tensor) -> tf.Tensor:
    return x


def functional() -> keras.Model:
    given = keras.Input((4,))
    row = keras.ops.expand_dims(given, 1)
    attended = keras.layers.MultiHeadAttention(2, 2)(row, row)[:, 0]
    return keras.Model(given, keras.layers.Dense(1)(keras.layers.Concatenate()([given, attended])) + 1.0)


def of(*layers: keras.layers.Layer, kind: type = keras.Sequential, is_built: bool = True) -> keras.Model:
    return kind([*([keras.Input((4,))] if is_built else []), *layers, keras.layers.Dense(1)])


STANDARD: dict[str, tuple[Model, dict[str, Any]]] = {
    "dense": (lambda: of(keras.layers.Dense(3, "relu", kernel_regularizer="l2")), {}),
    "normalised, with dropout": (lambda: of(keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)), {}),
    "recurrent": (lambda: of(keras.layers.Reshape((2, 2)), keras.layers.Bidirectional(keras.layers.LSTM(2))), {}),
    "functional": (functional, {}),
    "metrics": (of, {"metrics": ["mae", keras.metrics.RootMeanSquaredError()]}),
    "an optimizer with a tensor to begin with": (of, {"optimizer": keras.optimizers.Nadam}),
    "a scaled loss": (of, {"optimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())}),
    "a schedule": (of, {"optimizer": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10))}),
}
TWICE: dict[str, tuple[Model, dict[str, Any]]] = {
    "a layer": (lambda: of(Own()), {}),
    "a layer within another": (lambda: of(keras.layers.Reshape((2, 2)), keras.layers.TimeDistributed(Own())), {}),
    "a lambda": (lambda: of(keras.layers.Lambda(activation)), {}),
    "an activation": (lambda: of(keras.layers.Dense(2, activation=activation)), {}),
    "a part of a function": (lambda: of(keras.layers.Dense(2, activation=functools.partial(activation))), {}),
    "an activation of a cell": (
        lambda: of(keras.layers.Reshape((2, 2)), keras.layers.RNN(keras.layers.GRUCell(2, activation=activation))),
        {},
    ),
    "a regularizer": (lambda: of(keras.layers.Dense(2, kernel_regularizer=own)), {}),
    "a model": (lambda: of(kind=OwnModel), {}),
    "layers that are built in the trace": (lambda: of(is_built=False), {}),
    "a loss": (of, {"loss": own}),
    "a metric": (of, {"metrics": [own]}),
    "a metric of a function": (of, {"metrics": [keras.metrics.MeanMetricWrapper(own)]}),
    "a schedule": (of, {"optimizer": lambda: keras.optimizers.SGD(OwnRate())}),
}


def compiled(build: Model, loss: Any = "mse", optimizer: Any = keras.optimizers.Adam, **given: Any) -> keras.Model:
    model = build()
    model.compile(optimizer(), loss, **given)
    return model


@pytest.mark.parametrize("name", STANDARD)
def test_a_step_of_keras_alone_is_traced_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keras.utils.set_random_seed(1)
    build, given = STANDARD[name]
    model = compiled(build, **given)
    calls: list[str] = []
    call = keras.layers.Dense.call

    def counted(layer: Any, *args: Any, **options: Any) -> Any:
        calls.append(layer.name)
        return call(layer, *args, **options)

    monkeypatch.setattr(keras.layers.Dense, "call", counted)
    x, y = tf.zeros([6, 4]), tf.zeros([6, 1])
    step = trace_train_step(RunConfig("train.py", num_workers=2), Keras3(), model, element_like((x, y)))
    assert model.optimizer.built and calls == list(dict.fromkeys(calls))
    # What scales a loss has a rate of its own, which it does not read.
    assert len({id(v.value) for v in model.optimizer.variables} - {id(variable) for variable in step.variables}) <= 2


@pytest.mark.parametrize("name", TWICE)
def test_others_are_traced_as_tensorflow_does_it(name: str) -> None:
    """Where Python of the script's runs, or what is traced depends on whether layers have been built."""
    build, given = TWICE[name]
    model = compiled(build, **given)
    assert not Keras3().is_traced_once(model) and not model.optimizer.built


def test_the_one_trace_is_what_the_second_of_two_is() -> None:
    """Of a scaled loss: before its optimizer has variables, the scale is a number."""

    def traced(is_built: bool) -> list[str]:
        keras.utils.set_random_seed(1)
        model = compiled(STANDARD["a scaled loss"][0], **STANDARD["a scaled loss"][1], metrics=["mae"])
        if is_built:
            model.optimizer.build(model.trainable_weights)
            model._compile_metrics.build(tf.zeros([6, 1]), tf.zeros([6, 1]))
        element = element_like((tf.zeros([6, 4]), tf.zeros([6, 1])))
        step = trace_train_step(RunConfig("train.py", num_workers=2), Keras3(), model, element)
        assert all(variable.dtype.is_floating or variable.dtype.is_integer for variable in step.variables)
        return [operation.type for operation in step.graph.get_operations()]

    assert traced(is_built=False) == traced(is_built=True)
