"""Cases: steps whose Python reads how many rows a batch has, where plain python knows it."""

import dataclasses
import types

import numpy as np
import tensorflow as tf
from loops import EPOCHS, UNEVEN, batches, cross_entropy, outcome
from recording import BATCH, Results, case, compiled, digits, fit, mlp
from tensorflow import keras


@case
def loop_reads_sizes() -> Results:
    """A tf.function is traced for each size: what it compares is true for one of them and false for the other."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.05), cross_entropy()

    def weight(x: tf.Tensor) -> float:
        if x.shape[0] != BATCH:
            return 0.25
        return 2.0 if x.shape.as_list() == [BATCH, 64] else 4.0

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) * weight(x)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    losses = [float(train_step(x, y)) for _ in range(EPOCHS) for x, y in batches(UNEVEN)]
    return outcome(model, optimizer, loss=losses)


@dataclasses.dataclass
class Batch:
    x: tf.Tensor
    y: tf.Tensor


@case
def eager_objects_of_several_sizes() -> Results:
    """Batches are objects of the script's; what a smaller one does in Python counts as what others do."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.05), cross_entropy()
    seen = types.SimpleNamespace(rows=0, small=0)

    def loss_at(batch: Batch) -> tf.Tensor:
        seen.rows += len(batch.x)
        if batch.x.shape[0] < BATCH:
            seen.small += 1
        return loss_of(batch.y, model(batch.x, training=True)) / len(batch.x)

    losses, counts = [], []
    for _ in range(EPOCHS):
        for x, y in batches(UNEVEN):
            batch = Batch(x, y)
            with tf.GradientTape() as tape:
                loss = loss_at(batch)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            losses.append(float(loss))
            counts.append([int(seen.rows), int(seen.small)])
    return {**outcome(model, optimizer, loss=losses), "count/seen": np.asarray(counts)}


class WeighsWholeBatches(keras.layers.Layer):
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * 0.5 if x.shape[0] == BATCH else x * 3.0


@case
def data_dataset_whose_rows_are_read() -> Results:
    """Where all batches are equal Keras knows how many rows they have."""
    inputs = keras.Input((64,))
    model = compiled(keras.Model(inputs, mlp()(WeighsWholeBatches()(inputs))))
    data = tf.data.Dataset.from_tensor_slices(digits(UNEVEN)).batch(BATCH, drop_remainder=True)
    return fit(model, data, batch_size=None)
