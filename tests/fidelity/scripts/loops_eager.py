"""Cases: training loops without tf.function, as tutorials and textbooks write them."""

import contextlib
import io
import itertools
import random
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from loops import EPOCHS, NUM, UNEVEN, batches, cross_entropy, outcome
from recording import BATCH, Results, case, digits, from_weights, mlp
from tensorflow import keras


@case
def eager_tutorial() -> Results:
    """The first loop of every tutorial: a metric, a sum of losses, a line now and then."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(), cross_entropy()
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    losses, accuracies = [], []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for epoch in range(EPOCHS):
            total = 0.0
            for step, (x, y) in enumerate(batches(UNEVEN)):
                with tf.GradientTape() as tape:
                    logits = model(x, training=True)
                    loss = loss_of(y, logits)
                gradients = tape.gradient(loss, model.trainable_weights)
                optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
                accuracy.update_state(y, logits)
                total += float(loss)
                if step % 2 == 0:
                    print(f"epoch {epoch} step {step}: {float(loss):.3f}")
            losses.append(total)
            accuracies.append(float(accuracy.result()))
            accuracy.reset_state()
    lines = len(printed.getvalue().splitlines())
    return {**outcome(model, optimizer, loss=losses, accuracy=accuracies), "count/lines": np.asarray(lines)}


class Trainer:
    """Keeps everything in attributes, numbers among them."""

    def __init__(self) -> None:
        self.model, self.optimizer, self.loss_of = mlp(), keras.optimizers.SGD(0.1), cross_entropy()
        self.weight, self.steps, self.history = 1.0, 0, []

    def penalty(self) -> tf.Tensor:
        return self.weight * 1e-2 * tf.add_n([tf.reduce_sum(w**2) for w in self.model.trainable_weights])

    def train_step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self.model(x, training=True)) + self.penalty()
        gradients = tape.gradient(loss, self.model.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_weights, strict=True))
        self.steps += 1
        return loss


@case
def eager_skips_bad_batches() -> Results:
    """A batch whose label is out of range ends a fit, and is skipped by a loop; the steps before it have happened."""
    x, y = digits(NUM)
    y[BATCH + 3] = 11
    model, loss_of, skipped, losses = mlp(), cross_entropy(), [], []
    model.compile("sgd", loss_of)
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    after_fit = model.get_weights()
    for start in range(0, NUM, BATCH):
        try:
            with tf.GradientTape() as tape:
                loss = loss_of(y[start : start + BATCH], model(x[start : start + BATCH]))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses.append(loss)
        except tf.errors.InvalidArgumentError:
            skipped.append(start)
    results = {"history/loss": np.asarray([float(loss) for loss in losses]), "count/skipped": np.asarray(skipped)}
    return {**results, **from_weights(after_fit, "fit/"), **from_weights(model.get_weights())}


@case
def eager_class() -> Results:
    """A number that a method reads changes from epoch to epoch; a counter is counted."""
    trainer = Trainer()
    for _ in range(EPOCHS):
        for x, y in batches():
            trainer.history.append(float(trainer.train_step(x, y)))
        trainer.weight *= 0.5
    values = outcome(trainer.model, trainer.optimizer, loss=trainer.history)
    return {**values, "count/steps": np.asarray(trainer.steps)}


@case
def eager_by_hand() -> Results:
    """No Keras: Adam by hand over lists of moments, numbers at first, a rate that decays, slices of arrays for batches."""
    random = np.random.default_rng(0)
    w1 = tf.Variable(random.normal(size=(64, 24)).astype("float32") * 0.2)
    w2 = tf.Variable(random.normal(size=(24, 10)).astype("float32") * 0.2)
    weights = [w1, w2]
    first, second, best = [0] * len(weights), [0.0] * len(weights), None
    beta_1, beta_2, t, losses = 0.9, 0.99, 0, []
    images, labels = digits(UNEVEN)
    for epoch in range(EPOCHS):
        rate = 0.01 * 0.9**epoch
        for start in range(0, len(images), 64):
            x, y = images[start : start + 64], labels[start : start + 64]
            t += 1
            with tf.GradientTape() as tape:
                logits = tf.nn.relu(x @ w1) @ w2
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            for i, (w, g) in enumerate(zip(weights, tape.gradient(loss, weights), strict=True)):
                first[i] = beta_1 * first[i] + (1 - beta_1) * g
                second[i] = beta_2 * second[i] + (1 - beta_2) * g**2
                w.assign_sub(rate * (first[i] / (1 - beta_1**t)) / (tf.sqrt(second[i] / (1 - beta_2**t)) + 1e-7))
            best = loss if best is None else tf.minimum(best, loss)
            losses.append(loss.numpy())
    values = {"history/loss": np.asarray([*losses, best.numpy()], np.float64), "count/t": np.asarray(t)}
    return {**values, **from_weights([w.numpy() for w in (*weights, *first, *second)])}


@case
def eager_gan() -> Results:
    """Critic and generator in turn, a tape each, deleted when it is spent; labels are smoothed by a number that changes."""
    generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(64, "sigmoid")])
    critic = keras.Sequential([keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(1)])
    of_generator, of_critic = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    random, seen, smooth = np.random.RandomState(0), [], 0.9
    for _ in range(EPOCHS):
        for images, _ in batches():
            noise = tf.constant(random.normal(size=(len(images), 8)).astype("float32"))
            made = generator(noise, training=True)
            with tf.GradientTape(persistent=True) as tape:
                real, fake = critic(images, training=True), critic(made, training=True)
                of_both = loss_of(smooth * tf.ones_like(real), real) + loss_of(tf.zeros_like(fake), fake)
            gradients = tape.gradient(of_both, critic.trainable_variables)
            of_critic.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
            del tape
            with tf.GradientTape() as tape:
                fooled = critic(generator(noise, training=True), training=True)
                loss = loss_of(tf.ones_like(fooled), fooled)
            gradients = tape.gradient(loss, generator.trainable_variables)
            del tape
            of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
            seen.append([loss.numpy(), of_both.numpy()])
        smooth *= 0.9
    return {**outcome(generator, of_generator, seen=seen), **from_weights(critic.get_weights(), "critic/")}


@case
def eager_helpers() -> Results:
    """The tape in one function, the update in another, both called by the loop."""
    model, optimizer, loss_of = mlp(), keras.optimizers.RMSprop(), cross_entropy()

    def compute(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        loss = tf.zeros([])

        def add(term: tf.Tensor) -> None:
            nonlocal loss
            loss += term

        with tf.GradientTape() as tape:
            add(loss_of(y, model(x)))
        return loss, tape.gradient(loss, model.trainable_weights)

    def update(gradients: list[tf.Tensor]) -> None:
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))

    losses = []
    for _ in range(EPOCHS):
        for x, y in batches():
            loss, gradients = compute(x, y)
            update(gradients)
            losses.append(float(loss))
    return outcome(model, optimizer, loss=losses)


@case
def eager_accumulated() -> Results:
    """Gradients of two batches are added up in a list before they are applied."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.1), cross_entropy()
    weights = model.trainable_weights
    sums, losses, count = [tf.zeros_like(w) for w in weights], [], 0
    for _ in range(EPOCHS):
        for x, y in batches():
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x))
            gradients = tape.gradient(loss, weights)
            sums = [a + g / 2 for a, g in zip(sums, gradients, strict=True)]
            count += 1
            if count % 2 == 0:
                optimizer.apply_gradients(zip(sums, weights, strict=True))
                sums = [tf.zeros_like(w) for w in weights]
            losses.append(float(loss))
    return outcome(model, optimizer, loss=losses)


@case
def eager_nested_tapes() -> Results:
    """A gradient penalty: a tape in a tape."""
    model, optimizer = (
        keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]),
        None,
    )
    optimizer = keras.optimizers.Adam(1e-2)
    losses = []
    for _ in range(EPOCHS):
        for x, _ in batches():
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    scores = model(x)
                slopes = inner.gradient(scores, x)
                norms = tf.sqrt(tf.reduce_sum(slopes**2, axis=1))
                loss = tf.reduce_mean(scores**2) + tf.reduce_mean((norms - 1.0) ** 2)
            gradients = outer.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            losses.append(float(loss))
    return outcome(model, optimizer, loss=losses)


@case
def eager_lazy_model() -> Results:
    """The model makes its weights in the first step; the loop is a `while` and stops on a loss."""

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.classes = keras.layers.Dense(24, "relu"), keras.layers.Dense(10)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return self.classes(self.hidden(x))

    model, optimizer, losses, step = Net(), keras.optimizers.Adam(1e-2), [], 0
    data = itertools.cycle(batches())
    while True:
        x, y = next(data)
        with tf.GradientTape() as tape:
            loss = cross_entropy_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        step += 1
        losses.append(loss)
        if loss < 1.7 or step > 30:
            break
    return {**outcome(model, optimizer, loss=[float(each) for each in losses]), "count/steps": np.asarray(step)}


class Lazy(tf.Module):
    """A layer of the script's own, which makes its weights when it is called first."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units, self.weights, self.calls = units, [], 0

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self.calls += 1
        if not self.weights:
            first = keras.initializers.GlorotUniform()
            self.weights.append(tf.Variable(lambda: first((x.shape[1], self.units))))
        return x @ self.weights[0]


class TracedModel(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.classes = Lazy(24), Lazy(10)

    @tf.function
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.classes(tf.tanh(self.hidden(x)))


class DescentWithMomentum:
    """An optimizer of the script's own, which makes its variables in its first update."""

    def __init__(self) -> None:
        self.rate, self.moments = 0.1, None

    def apply(self, gradients: list[tf.Tensor], variables: list[tf.Variable]) -> None:
        if self.moments is None:
            self.moments = [tf.Variable(tf.zeros(variable.shape)) for variable in variables]
        for gradient, variable, moment in zip(gradients, variables, self.moments, strict=True):
            moment.assign(0.9 * moment + gradient)
            variable.assign_sub(self.rate * moment)


@case
def eager_calls_a_function_that_makes_weights() -> Results:
    """The model is a tf.function, as in TensorFlow's guides; its layers make weights, and count calls, when it is traced."""
    model, optimizer, loss_of, losses = TracedModel(), DescentWithMomentum(), cross_entropy(), []
    for _ in range(EPOCHS):
        for x, y in batches(UNEVEN):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            losses.append(float(loss))
    weights = from_weights([variable.numpy() for variable in model.trainable_variables])
    return {**weights, "history/loss": np.asarray(losses), "count/weights": np.asarray(len(model.trainable_variables))}


def cross_entropy_of(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x)))


@case
def eager_arrays_after_the_build() -> Results:
    """The first step makes the model's weights, then asks an array for what no tensor has: it is traced in another way."""
    model, optimizer = (
        keras.Sequential([keras.layers.Dense(24, "relu"), keras.layers.Dense(1)]),
        keras.optimizers.RMSprop(),
    )
    x, losses = digits(120)[0], list[float]()
    for start in range(0, 120, 50):
        rows = x[start : start + 50]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(rows)[:, 0] - rows.max(1) - rows.mean()))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        losses.append(float(loss))
    return outcome(model, optimizer, loss=losses)


class OwnMomentum(tf.Module):
    """An optimizer of the script's own, which makes its variables when it first sees gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.velocities, self.built, self.updates = [], False, 0.0

    def update(self, gradients: list[tf.Tensor], variables: list[tf.Variable]) -> None:
        if not self.built:
            self.velocities += [tf.Variable(tf.zeros(variable.shape)) for variable in variables]
            self.built = True
        for velocity, gradient, variable in zip(self.velocities, gradients, variables, strict=True):
            velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(0.05 * velocity)
        self.updates += 1


@case
def eager_own_optimizer() -> Results:
    """Variables are made in the first step, by hand; the loop is around a function that holds the tape."""
    model, optimizer, losses = mlp(), OwnMomentum(), []

    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cross_entropy_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.update(gradients, model.trainable_variables)
        return loss

    for _ in range(EPOCHS):
        losses += [float(train(x, y)) for x, y in batches(UNEVEN)]
    velocities = [velocity.numpy() for velocity in optimizer.velocities]
    values = from_weights([*model.get_weights(), *velocities])
    return {**values, "history/loss": np.asarray(losses, np.float64), "count/updates": np.asarray(optimizer.updates)}


@case
def eager_random() -> Results:
    """Numbers that TensorFlow, NumPy and Python draw in the step, and between steps; a batch taken within it."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.1), cross_entropy()
    keras.utils.set_random_seed(5)
    generator, losses, between = np.random.default_rng(7), [], []
    data = iter(batches().repeat())
    for _ in range(len(batches()) * EPOCHS):
        with tf.GradientTape() as tape:
            x, y = next(data)
            noise = tf.random.normal(tf.shape(x), stddev=0.1) + generator.normal(size=(1, 64)).astype("float32") * 0.1
            kept = tf.cast(tf.random.uniform(tf.shape(x)) < 0.8, x.dtype)
            scale = tf.cast(tf.random.uniform([], 1, 4, tf.int32), x.dtype) * random.uniform(0.5, 1.5)
            loss = loss_of(y, model(x * kept + noise)) * scale * np.random.rand()
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        losses.append(loss)
        between.append(float(tf.random.normal([])) + random.random() + np.random.rand() + generator.random())
    return outcome(model, optimizer, loss=[float(each) for each in losses], between=between)


@case
def eager_wide_arrays() -> Results:
    """Arrays and numbers of float64 meet tensors of float32: TensorFlow takes them as such."""
    model, optimizer = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]), keras.optimizers.SGD(0.1)
    images, losses = digits(UNEVEN)[0].astype("float64"), []
    for epoch in range(EPOCHS):
        weight = np.mean(images) + epoch
        for start in range(0, len(images), 64):
            x = images[start : start + 64]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x - model(x))) * weight
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            losses.append(float(loss))
    return outcome(model, optimizer, loss=losses)


class Settings:
    scale = 1.0


SETTINGS = Settings()


def scaled(model: keras.Model, x: tf.Tensor) -> tf.Tensor:
    return model(x) * SETTINGS.scale


@case
def eager_metrics_of_each_epoch() -> Results:
    """As in TensorFlow's tutorial of custom training: metrics are made anew; a function reads what the loop changes."""
    model, optimizer, loss_of, means = mlp(), keras.optimizers.SGD(0.1), cross_entropy(), []
    SETTINGS.scale = 1.0
    for _ in range(18):
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
        for x, y in batches(2 * BATCH):
            with tf.GradientTape() as tape:
                logits = scaled(model, x)
                loss = loss_of(y, logits)
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            mean.update_state(loss)
            accuracy.update_state(y, logits)
        SETTINGS.scale *= 0.9
        means.append([float(mean.result()), float(accuracy.result())])
    return outcome(model, optimizer, means=means)


@case
def eager_beside_a_pipeline_that_draws() -> Results:
    """The next elements are made in a thread, with NumPy's random numbers, while the step is traced."""
    model, optimizer, random_numbers = mlp(), keras.optimizers.SGD(0.1), np.random

    def drawn() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        x, y = digits(NUM)
        while True:
            rows = random_numbers.permutation(NUM)[:BATCH]
            yield x[rows], y[rows]

    specs = tf.TensorSpec([BATCH, 64]), tf.TensorSpec([BATCH], tf.int64)
    losses, loss_of = [], cross_entropy()
    for x, y in tf.data.Dataset.from_generator(drawn, output_signature=specs).prefetch(8).take(12):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True)
        )
        losses.append(float(loss))
    return outcome(model, optimizer, loss=losses)


@case
def eager_attached_to_tensors() -> Results:
    """Keras keeps logits with probabilities, and masks with sequences; losses that are computed beside the step use them."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy()
    of_words = keras.Sequential([keras.layers.Embedding(17, 4, mask_zero=True), keras.layers.Dense(1)])
    words_optimizer, squares = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()
    metric, losses, beside = keras.metrics.SparseCategoricalCrossentropy(), [], []
    for _ in range(EPOCHS):
        for x, y in batches():
            before = model(x * 100.0)
            with tf.GradientTape() as tape:
                probabilities = model(x * 100.0)
                loss = loss_of(y, probabilities) + tf.stop_gradient(loss_of(y, before))
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            metric(y, probabilities)
            losses.append(float(loss))
            words = tf.cast(x * 16.0, tf.int32)
            with tf.GradientTape() as tape:
                scores = of_words(words)
                loss = tf.reduce_mean(scores**2)
            gradients = tape.gradient(loss, of_words.trainable_weights)
            words_optimizer.apply_gradients(zip(gradients, of_words.trainable_weights, strict=True))
            beside.append(float(squares(tf.ones_like(scores), scores)))
        beside.append(float(metric.result()))
    return outcome(model, optimizer, loss=losses, beside=beside)
