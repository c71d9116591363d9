"""Cases: every form in which `fit` takes data. All but arrays, and data sets of their rows, are streamed, batch by batch."""

import numpy as np
import pandas as pd
import scipy.sparse
import tensorflow as tf
from recording import BATCH, Results, case, compiled, digits, fit, from_history, from_model
from tensorflow import keras

UNEVEN = 4 * 64 + 3
VALIDATION = digits(70, start=1000)


def dataset(num: int = UNEVEN) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(digits(num))


@case
def data_dataset() -> Results:
    return fit(compiled(), dataset().batch(BATCH), batch_size=None)


@case
def data_dataset_shuffled() -> Results:
    """Another order in each epoch, by the script's seed; validation from a data set too."""
    shuffled = dataset().shuffle(1000, seed=3, reshuffle_each_iteration=True).batch(BATCH).prefetch(2)
    valid = tf.data.Dataset.from_tensor_slices(VALIDATION).batch(32)
    return fit(compiled(), shuffled, batch_size=None, validation_data=valid)


@case
def data_dataset_shuffled_and_looked_at() -> Results:
    """What the script itself iterates over counts as an epoch of the shuffle; parts of it are trained on in turn."""
    rows = dataset().shuffle(1000, seed=3)
    shapes = [x.shape for x, _ in rows.take(2)]
    assert len(shapes) == 2
    model = compiled()
    first = fit(model, rows.skip(20).batch(BATCH), batch_size=None, validation_data=rows.take(20).batch(10))
    next(iter(rows))
    second = fit(model, rows.batch(BATCH), batch_size=None)
    before = {name.replace("/", "/first_", 1): value for name, value in first.items() if name.startswith("history/")}
    return {**before, **second}


@case
def data_dataset_mapped() -> Results:
    """A function of TensorFlow's operations on every row."""
    halved = dataset().map(lambda x, y: (x / 2, y), num_parallel_calls=2).cache().shuffle(1000, seed=3)
    return fit(compiled(), halved.batch(BATCH).prefetch(2), batch_size=None)


@case
def data_dataset_batches_mapped() -> Results:
    """A function of batches that keeps their rows apart; some of the rows."""
    some = dataset().filter(lambda x, y: y % 3 > 0).shuffle(1000, seed=3).batch(BATCH)
    return fit(compiled(), some.map(lambda x, y: (x / 2, y)).prefetch(2), batch_size=None)


@case
def data_dataset_under_a_strategy() -> Results:
    """For such a model Keras 3 takes a batch before the first epoch, which is another order of a shuffle."""
    with tf.distribute.MirroredStrategy().scope():
        model, other = compiled(), compiled()
    shuffled = fit(model, dataset().shuffle(1000, seed=3).batch(BATCH), batch_size=None)
    return shuffled | fit(other, *digits(), prefix="arrays_")


@case
def data_dataset_endless() -> Results:
    return fit(compiled(), dataset(160).repeat().batch(BATCH), batch_size=None, steps_per_epoch=3, epochs=4)


@case
def data_dataset_unknown_length() -> Results:
    def is_odd(y: np.ndarray) -> np.bool_:
        return np.bool_(y % 2 == 1)

    # In Python, so that it is not known beforehand which rows pass.
    odd = dataset().filter(lambda x, y: tf.ensure_shape(tf.numpy_function(is_odd, [y], tf.bool), [])).batch(BATCH)
    return fit(compiled(), odd, batch_size=None)


@case
def data_dataset_ran_out() -> Results:
    """A step that finds no more data counts the rows that it would have had, where all batches have as many."""
    full = dataset().filter(lambda x, y: y >= 0).batch(BATCH, drop_remainder=True)
    epochs: list[float] = []
    told = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.extend(map(float, logs.values())))
    model = compiled(optimizer=keras.optimizers.AdamW(0.01, weight_decay=0.1))
    return {**fit(model, full, batch_size=None, callbacks=[told]), "logs/epochs": np.array(epochs)}


@case
def data_dataset_class_weight() -> Results:
    weights = {number: 1.0 + number / 5 for number in range(10)}
    return fit(compiled(), dataset().batch(BATCH), batch_size=None, class_weight=weights)


@case
def data_dataset_python() -> Results:
    """Python inside the data set."""

    def halved(x: np.ndarray) -> np.ndarray:
        return x / 2

    def halve(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.numpy_function(halved, [x], tf.float32), [64]), y

    return fit(compiled(), dataset().map(halve).batch(BATCH), batch_size=None)


@case
def data_steps_per_execution() -> Results:
    model = compiled(steps_per_execution=2)
    return fit(model, dataset().batch(BATCH), batch_size=None)


@case
def data_generator() -> Results:
    x, y = digits(640)

    def batches() -> object:
        buffer = np.empty((BATCH, 64), np.float32)
        for start in range(0, 10**9, BATCH):
            rows = np.arange(start, start + BATCH) % len(x)
            # One that uses its memory again: what was yielded before must not change with it.
            buffer[:] = x[rows]
            yield buffer.copy(), y[rows], np.linspace(0.5, 1.5, BATCH).astype("float32")

    return fit(compiled(), batches(), batch_size=None, steps_per_epoch=4, epochs=3)


@case
def data_generator_finite() -> Results:
    x, y = digits(UNEVEN)
    batches = ((x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, UNEVEN, BATCH))
    return fit(compiled(), batches, batch_size=None, epochs=1)


class Pieces(keras.utils.Sequence):
    """Batches from a class of the script's own."""

    def __init__(self, **options: object) -> None:
        if options:  # of Keras 3
            super().__init__(**options)
        self.x, self.y = digits(UNEVEN)
        self.epochs = 0

    def __len__(self) -> int:
        return -(-UNEVEN // BATCH)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return self.x[rows], self.y[rows]

    def on_epoch_end(self) -> None:
        self.epochs += 1


@case
def data_pydataset() -> Results:
    pieces = Pieces()
    results = fit(compiled(), pieces, batch_size=None, shuffle=False)
    return {**results, "count/epochs_seen": np.array(pieces.epochs)}


@case
def data_pydataset_threads() -> Results:
    return fit(compiled(), Pieces(workers=2), batch_size=None, shuffle=False)


@case
def data_pandas() -> Results:
    x, y = digits(UNEVEN)
    return fit(compiled(), pd.DataFrame(x), pd.Series(y))


@case
def data_ragged() -> Results:
    """Rows of different lengths, from a ragged tensor and from padded batches."""
    random = np.random.default_rng(0)
    lengths = random.integers(0, 9, 200)
    words = tf.RaggedTensor.from_row_lengths(random.integers(1, 50, lengths.sum()), lengths)
    labels = random.integers(0, 2, 200)

    class Mean(keras.layers.Layer):
        def call(self, x: tf.RaggedTensor) -> tf.Tensor:
            dense = tf.cast(x.to_tensor(), tf.float32)
            return tf.stack([tf.reduce_sum(dense, 1) / 100, tf.cast(x.row_lengths(), tf.float32) / 10], 1)

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.out = Mean(), keras.layers.Dense(1, activation="sigmoid")

        def call(self, x: tf.RaggedTensor) -> tf.Tensor:
            return self.out(self.mean(x))

    model = Net()
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((words, labels)).batch(30)
    return fit(model, data, batch_size=None)


@case
def data_padded() -> Results:
    random = np.random.default_rng(0)
    texts = [(random.integers(1, 50, n), n % 2) for n in random.integers(1, 12, 150)]
    data = tf.data.Dataset.from_generator(
        lambda: iter(texts), output_signature=(tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
    ).padded_batch(20)
    model = keras.Sequential(
        [
            keras.layers.Embedding(50, 8, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", metrics=["accuracy"])
    return fit(model, data, batch_size=None, epochs=3)


@case
def data_sparse() -> Results:
    x, y = digits(UNEVEN)
    x[x < 0.4] = 0
    model = keras.Sequential(
        [keras.Input((64,), sparse=True), keras.layers.Dense(24, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile(
        keras.optimizers.SGD(0.05, 0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return fit(model, scipy.sparse.csr_matrix(x), y, shuffle=False)


@case
def data_strings() -> Results:
    """Text goes in; the model looks it up in a vocabulary of its own."""
    random = np.random.default_rng(0)
    words = np.array(["ring", "server", "", "größe", "delay"])
    texts = np.array([" ".join(words[random.integers(0, 5, 6)]) for _ in range(150)])
    labels = np.array([text.count("ring") > 1 for text in texts], "int64")
    split = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    split.adapt(texts)
    model = keras.Sequential(
        [
            keras.Input((), dtype="string"),
            split,
            keras.layers.Embedding(20, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", metrics=["accuracy"])
    return fit(model, tf.constant(texts), labels, batch_size=32)


@case
def data_on_batch() -> Results:
    """The script's own loop around train_on_batch, and evaluate and fit in between."""
    x, y = digits(UNEVEN)
    model, logs = compiled(), []
    for epoch in range(3):
        for start in range(0, UNEVEN, BATCH):
            rows = slice(start, start + BATCH)
            logs.append(model.train_on_batch(x[rows], y[rows], class_weight={0: 2.0} if epoch == 1 else None))
        logs.append(model.evaluate(*VALIDATION, verbose=0))
    results = {"logs/loss": np.array([loss for loss, _ in logs]), "logs/accuracy": np.array([a for _, a in logs])}
    history = model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, shuffle=False)
    return {**results, **from_history(history), **from_model(model)}


@case
def data_on_batch_frozen() -> Results:
    """A judge frozen after it was compiled, as older scripts have it: Keras 3 then trains nothing of it, and counts on."""
    x, _ = digits(256)
    judge = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    judge.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    judge.trainable = False
    generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="sigmoid")])
    both = keras.Sequential([generator, judge])
    both.compile(keras.optimizers.Adam(0.01), "mse")
    random, logs = np.random.default_rng(0), []
    for step in range(6):
        noise = random.normal(size=(32, 8)).astype("float32")
        seen = judge.train_on_batch(x[step * 32 : step * 32 + 32], np.ones(32))
        logs.append([*seen, both.train_on_batch(noise, np.zeros(32))])
    history = judge.fit(x, np.ones(256), epochs=2, batch_size=64, verbose=0)
    return {
        "logs/loss": np.array(logs, "float64"),
        "logs/fit": np.array(history.history["mae"], "float64"),
        **from_model(both),
    }


@case
def data_on_batch_in_turn() -> Results:
    """`train_on_batch`, a step of the script's own, `fit` and the script itself change the same weights in turn."""
    x, y = digits(256)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    own = keras.optimizers.SGD(0.02)
    own.build(model.trainable_variables)

    @tf.function
    def step(rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(labels, model(rows, training=True))
        own.apply_gradients(
            zip(tape.gradient(value, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return value

    losses = []
    for turn in range(4):
        first, second = x[turn * 64 : turn * 64 + 32], y[turn * 64 : turn * 64 + 32]
        losses.append(float(model.train_on_batch(first, second)))
        losses.append(float(model.train_on_batch(first, second)))
        losses.append(float(step(first, second)))
        if turn == 1:
            kernel = model.layers[0].kernel
            kernel.assign(kernel * 0.5)
        if turn == 2:
            model.optimizer.learning_rate = 0.01
            losses += model.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=0).history["loss"]
    return {"logs/loss": np.array(losses, "float64"), **from_model(model)}


@case
def data_on_batch_gan() -> Results:
    """Two models that share layers are trained in turn, each with the other's layers held."""
    x, _ = digits(256)
    generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="sigmoid")])
    judge = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    judge.compile(keras.optimizers.Adam(0.01), loss)
    judge.trainable = False
    both = keras.Sequential([generator, judge])
    both.compile(keras.optimizers.Adam(0.01), loss)
    random, losses = np.random.default_rng(0), []
    for step in range(12):
        noise = random.normal(size=(32, 8)).astype("float32")
        rows = x[step % 4 * 32 : step % 4 * 32 + 32]
        fake = generator.predict_on_batch(noise)
        judge.trainable = True
        first = judge.train_on_batch(np.concatenate([rows, fake]), np.repeat([1.0, 0.0], 32))
        judge.trainable = False
        losses.append([first, both.train_on_batch(noise, np.ones(32))])
    return {"logs/loss": np.array(losses, "float64"), **from_model(both)}
