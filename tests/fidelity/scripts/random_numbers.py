"""Cases that one worker must repeat exactly and several can only come close to.

Every worker draws its own dropout masks, and a BatchNormalization sees only its worker's share of the batch.
"""

import tensorflow as tf
from loops import EPOCHS, UNEVEN, batches, cross_entropy, outcome
from recording import Results, case, compiled, digits, fit, mlp
from tensorflow import keras

TRAINING = 64 * 20
UNSEEN = digits(400, start=1300)


def trained(layer: keras.layers.Layer) -> Results:
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        layer,
        keras.layers.Dense(10, activation="softmax"),
    ]
    return fit(compiled(keras.Sequential(layers)), *digits(TRAINING), validation_data=UNSEEN)


@case
def dropout() -> Results:
    return trained(keras.layers.Dropout(0.3, seed=9))


@case
def batch_normalization() -> Results:
    return trained(keras.layers.BatchNormalization(momentum=0.9))


@case
def numbers_of_tf_random() -> Results:
    """As generative models draw them: without a seed of their own, and for as many rows as there are."""

    class Noisy(keras.Model):
        def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
            x, y = data
            noise, kept = tf.random.normal(tf.shape(x)), tf.random.uniform([tf.shape(x)[0], 1])
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x + 0.1 * noise, training=True), sample_weight=kept)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "noise": tf.reduce_mean(noise), "kept": tf.reduce_mean(kept)}

    inputs = keras.Input((64,))
    outputs = keras.layers.Dense(10, "softmax")(keras.layers.Dropout(0.2)(keras.layers.Dense(24, "relu")(inputs)))
    model = Noisy(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy")
    fit(model, *digits(150))
    # The operations that have been traced draw again what they have drawn.
    keras.utils.set_random_seed(6)
    return fit(model, *digits(150))


@case
def eager_random_with_seeds() -> Results:
    """Eager operations with a seed of their own count on together: before the loop, in its steps, and between them."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(0.01), cross_entropy()
    keras.utils.set_random_seed(5)

    def noise(like: tf.Tensor) -> tf.Tensor:
        return tf.random.normal(tf.shape(like), stddev=0.1, seed=7)

    losses, between = [], [float(tf.random.normal([], seed=7)), float(tf.random.uniform([], seed=3))]
    for epoch in range(EPOCHS):
        for x, y in batches(UNEVEN):
            with tf.GradientTape() as tape:
                kept = tf.nn.dropout(x + noise(x), 0.3, seed=3)
                scale = tf.random.uniform([], 1, 4, tf.int32, seed=2) * tf.random.uniform([], 1, 4, tf.int32, seed=2)
                loss = loss_of(y, model(kept)) * tf.cast(scale, x.dtype) + tf.reduce_mean(noise(kept))
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            losses.append(loss)
        between += [float(tf.random.normal([], seed=7)), float(tf.random.uniform([], seed=9))]
        if epoch == 0:
            tf.random.set_seed(8)
    return outcome(model, optimizer, loss=[float(each) for each in losses], between=between)


@case
def loop_random_by_size() -> Results:
    """Plain python has a function, and its random operations' counts, for each size of batch: the last one is smaller."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(0.01), cross_entropy()
    keras.utils.set_random_seed(5)

    @tf.function
    def shaken(x: tf.Tensor) -> tf.Tensor:
        return x * tf.random.uniform(tf.shape(x))

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            kept = tf.nn.dropout(x + tf.random.normal(tf.shape(x), stddev=0.1), 0.3)
            kept *= tf.random.uniform([], 0.5, 2.0, seed=3)
            loss = loss_of(y, model(kept))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    losses = [train_step(x, y) for _ in range(EPOCHS) for x, y in batches(UNEVEN)]
    for _ in range(2):
        for x, y in batches(UNEVEN):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(shaken(x)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses.append(loss)
    return outcome(model, optimizer, loss=[float(each) for each in losses])


def nested(is_eager: bool) -> Results:
    """Functions that draw, called twice by a step and by each other; TensorFlow's kernels begin again between the epochs."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(0.01), cross_entropy()
    keras.utils.set_random_seed(5)

    @tf.function
    def scaled(x: tf.Tensor) -> tf.Tensor:
        return x * tf.random.uniform([], 0.5, 2.0)

    @tf.function
    def jittered(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            x += tf.random.normal(tf.shape(x), stddev=0.1)
        return scaled(x) + tf.random.normal(tf.shape(x), stddev=0.1) + scaled(x) * tf.random.uniform([], seed=3)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            kept = tf.nn.dropout(jittered(x * tf.random.uniform([])) + jittered(x), 0.3)
            loss = loss_of(y, model(kept))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    losses, train_step = [], step if is_eager else tf.function(step)
    for epoch in range(EPOCHS):
        losses += [train_step(x, y) for x, y in batches(UNEVEN)]
        if epoch:
            tf.random.set_seed(epoch)
        else:
            keras.backend.clear_session()
    return outcome(model, optimizer, loss=[float(each) for each in losses])


@case
def loop_random_in_functions() -> Results:
    return nested(is_eager=False)


@case
def eager_random_in_functions() -> Results:
    return nested(is_eager=True)
