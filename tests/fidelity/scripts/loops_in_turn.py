"""Cases: loops of several steps in turn, which read and change each other's variables, as does the script between them."""

import numpy as np
import tensorflow as tf
from loops import EPOCHS, batches, cross_entropy, outcome
from recording import Results, case, from_optimizer, from_weights, mlp
from tensorflow import keras


def dense(*units: int) -> keras.Sequential:
    """Returns a net from units[0] to units[-1], tanh in between."""
    inner = [keras.layers.Dense(n, "tanh") for n in units[1:-1]]
    return keras.Sequential([keras.Input((units[0],)), *inner, keras.layers.Dense(units[-1])])


@case
def loop_in_turn() -> Results:
    """Two steps of a critic for each of a generator; statistics kept by hand, a metric that both add to, a slow copy."""
    keras.utils.set_random_seed(3)
    generator, critic, slow = dense(8, 24, 64), dense(64, 24, 1), dense(8, 24, 64)
    slow.set_weights(generator.get_weights())
    of_generator, of_critic = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3)
    of_generator.build(generator.trainable_variables)
    of_critic.build(critic.trainable_variables)
    mean_score, scale = keras.metrics.Mean(), tf.Variable(1.0, trainable=False)

    @tf.function
    def critic_step(images: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            real, made = critic(images), critic(generator(noise))
            loss = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(made))
        gradients = tape.gradient(loss, critic.trainable_variables)
        of_critic.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        scale.assign(0.9 * scale + 0.1 * tf.reduce_mean(tf.abs(real)))
        mean_score.update_state(real)
        return loss

    @tf.function
    def generator_step(noise: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            score = critic(generator(noise))
            loss = tf.reduce_mean(tf.nn.softplus(-score / tf.sqrt(scale)))
        gradients = tape.gradient(loss, generator.trainable_variables)
        of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
        mean_score.update_state(score)
        return loss

    @tf.function
    def follow() -> None:
        for mine, theirs in zip(slow.variables, generator.variables, strict=True):
            mine.assign(0.8 * mine + 0.2 * theirs)

    first, random, seen, epochs = critic.get_weights(), np.random.RandomState(0), [], []

    def noise(rows: int) -> np.ndarray:
        return random.normal(size=(rows, 8)).astype("float32")

    for epoch in range(EPOCHS):
        for number, (x, _) in enumerate(batches()):
            losses = [critic_step(x, noise(len(x)))]
            if number % 2:
                losses.append(generator_step(noise(len(x))))
                follow()
            # A look at one variable of the step that ran last, and at one of the other.
            seen.append([float(sum(losses)), int(of_generator.iterations), int(of_critic.iterations), float(scale)])
        epochs.append([float(mean_score.result()), float(np.sum(slow.get_weights()[0]))])
        mean_score.reset_state()
        of_critic.learning_rate = 1e-3
        if epoch == 1:
            # What the pool has been given before, and has changed since.
            critic.set_weights(first)
    weights = {**from_weights(critic.get_weights(), "critic/"), **from_weights(slow.get_weights(), "slow/")}
    seen_by_name = {"seen": np.asarray(seen), "epochs": epochs}
    return {**outcome(generator, of_generator, **seen_by_name), **weights, **from_optimizer(of_critic, "critic/")}


@case
def loop_two_functions() -> Results:
    """Two steps in turn that share variables."""
    encoder, head, other = mlp(), keras.layers.Dense(3), keras.layers.Dense(2)
    first, second = keras.optimizers.Adam(1e-2), keras.optimizers.SGD(0.05)

    def step(layer: keras.layers.Layer, optimizer: keras.optimizers.Optimizer, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(encoder(x)) - 1.0))
        variables = encoder.trainable_variables + layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for layer, optimizer in ((head, first), (other, second)):
        layer.build((None, 10))
        optimizer.build(encoder.trainable_variables + layer.trainable_variables)
    one = tf.function(lambda x: step(head, first, x))
    two = tf.function(lambda x: step(other, second, x))
    seen = [[float(one(x)), float(two(x))] for _ in range(2) for x, _ in batches()]
    return {**outcome(encoder, first, seen=seen), **from_optimizer(second, "second/")}


@case
def loop_accumulated() -> Results:
    """Gradients are kept in variables by one function and applied by another, every second batch."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.1, momentum=0.9), cross_entropy()
    optimizer.build(model.trainable_variables)
    kept = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]

    @tf.function
    def collect(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        for total, gradient in zip(kept, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(gradient / 2.0)
        return loss

    @tf.function
    def apply() -> None:
        optimizer.apply_gradients(zip(kept, model.trainable_variables, strict=True))
        for total in kept:
            total.assign(tf.zeros_like(total))

    losses = []
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(batches()):
            losses.append(float(collect(x, y)))
            if number % 2:
                apply()
    return outcome(model, optimizer, losses=losses)
