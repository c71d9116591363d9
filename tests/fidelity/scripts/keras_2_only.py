"""Cases: what only Keras 2 has."""

from typing import Any

import tensorflow as tf
from recording import BATCH, Results, case, compiled, digits, fit, from_history, from_weights, mlp
from tensorflow import keras

# Whole batches: another size is another graph for all of them, and what becomes of it other cases show.
EVEN = 4 * 64


def fit_with(optimizer: Any) -> Results:
    """The older optimizers show their variables in another way."""
    model = compiled(optimizer=optimizer)
    history = model.fit(*digits(EVEN), epochs=5, batch_size=BATCH, verbose=0)
    results = {**from_history(history), **from_weights(model.get_weights())}
    values = {f"optimizer/{index}": value for index, value in enumerate(optimizer.get_weights())}
    return {**results, **values, "count/iterations": optimizer.iterations.numpy()}


@case
def older_momentum() -> Results:
    return fit_with(keras.optimizers.legacy.SGD(0.05, momentum=0.9, nesterov=True))


@case
def older_adam() -> Results:
    return fit_with(keras.optimizers.legacy.Adam(0.01, amsgrad=True, clipnorm=0.5))


@case
def older_schedule() -> Results:
    schedule = keras.optimizers.schedules.PolynomialDecay(0.02, 20, 0.001)
    return fit_with(keras.optimizers.legacy.RMSprop(schedule))


@case
def older_loss_scale() -> Results:
    inner = keras.optimizers.legacy.SGD(0.05)
    return fit_with(keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=1024, dynamic_growth_steps=6))


@case
def newer_loss_scale() -> Results:
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=1024)
    return fit(compiled(optimizer=optimizer), *digits(EVEN))


class Branching(keras.layers.Layer):
    """AutoGraph makes its `if` a branch of the graph."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(tf.shape(inputs)) > 0:
            inputs = inputs * 2.0
        return inputs


@case
def branching_layer() -> Results:
    layers = [keras.Input((64,)), keras.layers.Dense(16), Branching(), keras.layers.Dense(10, activation="softmax")]
    return fit(compiled(keras.Sequential(layers)), *digits(EVEN))


class Clipping(keras.Model):
    """A train_step in the style of Keras 2's guides."""

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compiled_loss(y, predicted, regularization_losses=self.losses)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.5)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.compiled_metrics.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@case
def clipping_train_step() -> Results:
    inner = mlp()
    return fit(compiled(Clipping(inner.inputs, inner.outputs)), *digits(EVEN))


class Counted(keras.Model):
    """A step that reads how many Keras 2 has made: the loss of every third one counts double."""

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        factor = tf.where(self._train_counter % 3 == 0, 2.0, 1.0)
        with tf.GradientTape() as tape:
            loss = factor * self.compiled_loss(y, self(x, training=True))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


@case
def step_that_reads_the_counter() -> Results:
    inner = mlp()
    return fit(compiled(Counted(inner.inputs, inner.outputs)), *digits(EVEN), epochs=3)


@case
def added_metric() -> Results:
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(16, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(hidden))
    model.add_loss(0.01 * tf.reduce_mean(tf.square(hidden)))
    model.add_metric(tf.reduce_mean(hidden), name="activity")
    return fit(compiled(model), *digits(EVEN))


@case
def sequence_with_threads() -> Results:
    class Pieces(keras.utils.Sequence):
        def __init__(self) -> None:
            self.x, self.y = digits(EVEN)

        def __len__(self) -> int:
            return -(-EVEN // BATCH)

        def __getitem__(self, number: int) -> tuple[object, object]:
            rows = slice(number * BATCH, (number + 1) * BATCH)
            return self.x[rows], self.y[rows]

    return fit(compiled(), Pieces(), batch_size=None, shuffle=False, workers=2)


@case
def session_layers() -> Results:
    """A convolutional net of tf.layers, which Keras 2 still has, with a switch for training."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(2)
        images, labels = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int32, [None])
        training = v1.placeholder_with_default(False, [])
        net = v1.layers.conv2d(tf.reshape(images, [-1, 8, 8, 1]), 6, 3, activation=tf.nn.relu)
        net = v1.layers.flatten(v1.layers.max_pooling2d(net, 2, 2))
        net = tf.cond(training, lambda: net * 2.0, lambda: net)
        logits = v1.layers.dense(net, 10, kernel_regularizer=keras.regularizers.l2(1e-3))
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits) + v1.losses.get_regularization_loss()
        step = v1.train.AdamOptimizer(0.01).minimize(loss)
        session.run(v1.global_variables_initializer())
        x, y = digits(EVEN)
        losses = []
        for begin in range(0, EVEN, BATCH):
            feeds = {images: x[begin : begin + BATCH], labels: y[begin : begin + BATCH], training: True}
            losses.append(session.run([loss, step], feeds)[0])
        weights = [session.run(variable) for variable in v1.global_variables()]
        predicted = logits.eval({images: x[:20]})
    return {"history/loss": tf.constant(losses).numpy(), "predict/logits": predicted, **from_weights(weights)}
