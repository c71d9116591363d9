"""Trains a net on batches of one size, and on batches whose sizes differ, epoch by epoch in turn. Imports nothing of ours.

python benchmarks/models/sizes.py conv --batches 100 --epochs 6
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

WORDS, ROWS, MEAN = 1000, 16, 70
NETS = ("conv", "lstm", "gru", "attention", "images", "ragged", "padded", "bucketed", "one_row", "episodes")
# The net, with data; a training function that returns the mean loss of an epoch.
Epoch = Callable[[], float]


def lengths(count: int, differ: bool) -> np.ndarray:
    """Returns numbers of 20 to 120 with the mean 70, or 70 each time."""
    return np.random.RandomState(1).randint(20, 121, count) if differ else np.full(count, MEAN)


def text_net(*body: keras.Layer, masks: bool = False, ragged: bool = False) -> keras.Model:
    given = keras.Input((None,), dtype="int64")
    net = keras.Sequential([given, layers.Embedding(WORDS, 32, mask_zero=masks), *body, layers.Dense(1)])
    net.compile(keras.optimizers.SGD(0.05), "mse")
    return net


def attention() -> keras.Model:
    given = keras.Input((None,), dtype="int64")
    x = layers.Embedding(WORDS, 32)(given)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
    x = layers.Dense(64, activation="relu")(x)
    net = keras.Model(given, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
    net.compile(keras.optimizers.SGD(0.05), "mse")
    return net


def images() -> keras.Model:
    body = [layers.Conv2D(8, 3, strides=2, activation="relu"), layers.Conv2D(16, 3, activation="relu")]
    net = keras.Sequential([keras.Input((None, None, 3)), *body, layers.GlobalAveragePooling2D(), layers.Dense(1)])
    net.compile(keras.optimizers.SGD(0.05), "mse")
    return net


def build(name: str) -> keras.Model:
    conv = [layers.Conv1D(64, 5, activation="relu"), layers.GlobalMaxPooling1D()]
    nets: dict[str, Callable[[], keras.Model]] = {
        "lstm": lambda: text_net(layers.LSTM(32)),
        "gru": lambda: text_net(layers.GRU(32), masks=True),
        "attention": attention,
        "images": images,
    }
    return nets.get(name, lambda: text_net(*conv))()


def batches(name: str, count: int, differ: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches, each of one length."""
    random = np.random.RandomState(0)
    rows = 1 if name == "one_row" else ROWS
    for length in lengths(count, differ):
        y = random.rand(rows, 1).astype("float32")
        if name == "images":
            yield random.rand(rows, length, length + 5, 3).astype("float32"), y
            continue
        x = random.randint(1, WORDS, (rows, length))
        if name == "gru":
            # Zeros behind each row's words, which the mask leaves out.
            x[np.arange(length) >= random.randint(length // 2, length + 1, (rows, 1))] = 0
        yield x, y


def rows_of_words(count: int, differ: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.RandomState(0)
    for length in lengths(count, differ):
        yield random.randint(1, WORDS, length), random.rand(1).astype("float32")


def data_of(name: str, count: int, differ: bool) -> tf.data.Dataset:
    """Returns the batches of an epoch."""
    y = tf.TensorSpec((None, 1), tf.float32)
    if name in ("ragged", "padded", "bucketed"):
        signature = tf.TensorSpec((None,), tf.int64), tf.TensorSpec((1,), tf.float32)
        rows = tf.data.Dataset.from_generator(lambda: rows_of_words(ROWS * count, differ), output_signature=signature)
        if name == "padded":
            return rows.padded_batch(ROWS)
        if name == "bucketed":
            bounds = [40, 60, 80, 100]
            return rows.bucket_by_sequence_length(lambda x, _: tf.shape(x)[0], bounds, [ROWS] * (len(bounds) + 1))
        return rows.ragged_batch(ROWS).map(lambda x, y: (x.to_tensor(), y))
    x = tf.TensorSpec((None, None, None, 3), tf.float32) if name == "images" else tf.TensorSpec((None, None), tf.int64)
    return tf.data.Dataset.from_generator(lambda: batches(name, count, differ), output_signature=(x, y))


def fitted(name: str, count: int, differ: bool) -> Epoch:
    keras.utils.set_random_seed(1)
    net, data = build(name), data_of(name, count, differ)
    return lambda: float(net.fit(data, epochs=1, verbose=0).history["loss"][0])


def episodes(count: int, differ: bool) -> Epoch:
    """Policy gradients: an episode is a batch, and its length nobody knows before."""
    keras.utils.set_random_seed(1)
    policy = keras.Sequential([keras.Input((8,)), layers.Dense(64, activation="tanh"), layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.01)

    @tf.function(input_signature=[tf.TensorSpec((None, 8)), tf.TensorSpec((None,), tf.int64), tf.TensorSpec((None,))])
    def update(states: tf.Tensor, actions: tf.Tensor, returns: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            taken = tf.nn.sparse_softmax_cross_entropy_with_logits(actions, policy(states, training=True))
            loss = tf.reduce_mean(taken * returns)
        gradients = tape.gradient(loss, policy.trainable_variables)
        optimizer.apply_gradients(zip(gradients, policy.trainable_variables, strict=True))
        return loss

    def epoch() -> float:
        random, losses = np.random.RandomState(0), []
        for length in lengths(count, differ):
            states = random.rand(length, 8).astype("float32")
            actions, returns = random.randint(0, 4, length), random.rand(length).astype("float32")
            losses.append(update(states, actions, returns))
        return float(np.mean([float(loss) for loss in losses]))

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    make = episodes if options.net == "episodes" else lambda *of: fitted(options.net, *of)
    result: dict[str, Any] = {}
    epochs = {kind: make(options.batches, kind == "differing") for kind in ("fixed", "differing")}
    for _ in range(options.epochs):
        for kind, epoch in epochs.items():
            start = time.perf_counter()
            result.setdefault(f"{kind}_losses", []).append(epoch())
            result.setdefault(f"{kind}_s", []).append(time.perf_counter() - start)
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
