"""Cases: functions that a step calls; what goes in and out of them, and what Keras finds before a loss."""

import numpy as np
import tensorflow as tf
from loops import EPOCHS, batches, cross_entropy, outcome
from recording import Results, case, mlp
from tensorflow import keras


@case
def loop_inner_functions() -> Results:
    """Functions that the step calls: they get numbers and arrays as tensors, and give numbers and variables as tensors."""
    model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(10)])
    optimizer, loss_of = keras.optimizers.Adam(1e-2), cross_entropy(from_logits=True, reduction="none")
    count = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])])
    def mean(values: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(values) * by if tf.is_tensor(by) else tf.constant(0.0)

    @tf.function
    def counted(array: tf.Tensor) -> tuple:
        count.assign_add(1.0)
        return 7, array.ref().deref() * 2, count

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tuple:
        seven, doubled, before = counted(np.array([1.0, 2.0], np.float32))
        count.assign_add(tf.cast(seven, tf.float32) // 2)
        with tf.GradientTape() as tape:
            loss = mean(loss_of(y, model(x, training=True)), by=0.5)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss, doubled, before

    seen = []
    for _ in range(EPOCHS):
        for x, y in batches():
            loss, doubled, before = train_step(x, y)
            seen.append([float(loss), *doubled.numpy(), float(before)])
    return outcome(model, optimizer, seen=seen, count=count)


@case
def eager_probabilities() -> Results:
    """Where Keras finds a softmax it computes with what that was given: not of an eager tensor, nor through a tf.function."""
    last, hidden = mlp(), mlp()
    optimizer, pairs_of = keras.optimizers.SGD(1e-3), keras.losses.BinaryCrossentropy()
    loss_of, within = (
        keras.losses.SparseCategoricalCrossentropy(),
        tf.function(keras.losses.SparseCategoricalCrossentropy()),
    )

    @tf.function
    def right(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(200.0 * hidden(x))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, tf.nn.softmax(200.0 * last(x))) + within(y, tf.nn.softmax(200.0 * last(x)))
            loss += loss_of(y, right(x)) + loss_of(y, hidden(50.0 * x))
        optimizer.apply_gradients(zip(tape.gradient(loss, last.trainable_weights), last.trainable_weights, strict=True))
        return loss

    losses = []
    for _ in range(EPOCHS):
        for x, y in batches():
            with tf.GradientTape() as tape:
                loss = loss_of(y, tf.nn.softmax(200.0 * last(x))) + loss_of(y, right(x))
                loss += pairs_of(tf.one_hot(y, 10), tf.sigmoid(300.0 * last(x)))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, last.trainable_weights), last.trainable_weights, strict=True)
            )
            losses += [float(loss), float(step(x, y))]
    return outcome(last, optimizer, loss=losses)
