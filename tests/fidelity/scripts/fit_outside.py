"""Cases: a `fit` whose step does more than compute, or whose Python reads what callbacks have set up when it is traced."""

import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from recording import Results, case, compiled, digits, fit, mlp
from tensorflow import keras

# The last batch is smaller.
UNEVEN = 3 * 64 + 23


def events(directory: str) -> Results:
    """Returns the summaries of all files in a directory: their folders, tags, steps and strings, and their numbers."""
    names, numbers = [], []
    for path in sorted(pathlib.Path(directory).rglob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                text = array.tolist() if array.dtype == object and value.tag != "keras" else ""
                names.append(f"{path.parent.relative_to(directory)} {value.tag} {event.step} {text}")
                numbers.append(0.0 if array.dtype == object else float(np.sum(array)))
    return {"text/events": np.array(names), "history/events": np.array(numbers)}


class Writes(keras.Model):
    """Writes summaries of each kind in its step, some of them every other time."""

    def __init__(self, writer: tf.summary.SummaryWriter):
        super().__init__()
        self.net, self.writer, self.number = mlp(), writer, tf.Variable(0, dtype=tf.int64, trainable=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.net(x)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self.net(x)))
        weights = self.net.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with self.writer.as_default(step=self.number):
            tf.summary.scalar("loss", loss)
            tf.summary.histogram("pixels", x)
            with tf.summary.record_if(self.number % 2 == 0):
                tf.summary.image("digits", tf.reshape(x, [-1, 8, 8, 1]), max_outputs=2)
                tf.summary.text("sum", tf.strings.as_string(tf.math.count_nonzero(x)))
        self.number.assign_add(1)
        return {"loss": loss}


@case
def fit_summaries() -> Results:
    with tempfile.TemporaryDirectory() as directory:
        writer = tf.summary.create_file_writer(directory)
        model = Writes(writer)
        model.build((None, 64))
        model.compile("sgd")
        results = fit(model, *digits(UNEVEN), epochs=2)
        writer.close()
        return {**results, **events(directory)}


class Looks(keras.layers.Layer):
    """Writes what passes it, to the writer of the moment if there is one."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        tf.summary.histogram("passing", x)
        return x


@case
def layer_summaries() -> Results:
    """TensorBoard's callback has a writer ready when the first step is made, and not before."""
    layers = [keras.Input((64,)), keras.layers.Dense(12), Looks(), keras.layers.Dense(10, activation="softmax")]
    with tempfile.TemporaryDirectory() as directory:
        board = keras.callbacks.TensorBoard(directory, update_freq=1, write_graph=False)
        results = fit(compiled(keras.Sequential(layers)), *digits(UNEVEN), epochs=2, callbacks=[board])
        return {**results, **events(directory)}


class Warm(keras.callbacks.Callback):
    """Sets what the step reads in Python: plain Keras traces it afterwards."""

    def on_train_begin(self, logs: object = None) -> None:
        self.model.strength = 0.5

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.model.strength += 0.25


class Strengthened(keras.Model):
    """Its loss has a factor that is a number of Python's."""

    strength = 10.0

    def compute_loss(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self.strength * super().compute_loss(*args, **kwargs)


@case
def step_that_a_callback_sets_up() -> Results:
    inner = mlp()
    return fit(compiled(Strengthened(inner.inputs, inner.outputs)), *digits(UNEVEN), epochs=3, callbacks=[Warm()])
