"""Data sets and models of `convergence.py`: digits always, others where Keras has downloaded them before."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


@dataclasses.dataclass(frozen=True)
class Data:
    """A classification task.

    Attributes:
        epochs: How long to train.
        build: Makes the model; it returns logits.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    epochs: int
    build: Callable[[], keras.Model]


def load(name: str) -> Data:
    """Returns a data set by name."""
    return {"digits": _digits, "fashion_mnist": _fashion_mnist, "cifar10": _cifar10}[name]()


def available() -> Iterator[Data]:
    """Yields the data sets that need no download."""
    cache = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets"
    yield load("digits")
    if (cache / "fashion-mnist" / "train-images-idx3-ubyte.gz").exists():
        yield load("fashion_mnist")
    if any((cache / name).exists() for name in ("cifar-10-batches-py", "cifar-10-batches-py-target")):
        yield load("cifar10")


def _digits() -> Data:
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        (x / 16).astype("float32"), y.astype("int64"), test_size=0.3, random_state=0
    )
    return Data("digits", x_train, y_train, x_test, y_test, 20, lambda: _dense(64))


def _fashion_mnist() -> Data:
    (x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    x_train, x_test = ((x.reshape(len(x), -1) / 255).astype("float32") for x in (x_train, x_test))
    return Data(
        "fashion_mnist", x_train, y_train.astype("int64"), x_test, y_test.astype("int64"), 5, lambda: _dense(784)
    )


def _cifar10() -> Data:
    (x_train, y_train), (x_test, y_test) = keras.datasets.cifar10.load_data()
    x_train, x_test = ((x / 255).astype("float32") for x in (x_train, x_test))
    return Data(
        "cifar10", x_train, y_train[:, 0].astype("int64"), x_test, y_test[:, 0].astype("int64"), 5, _convolutional
    )


def _dense(num_features: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((num_features,)), *(layers.Dense(64, "relu") for _ in range(2)), layers.Dense(10)]
    )


def _convolutional() -> keras.Model:
    layers = keras.layers
    blocks = [layer for f in (16, 32, 64) for layer in (layers.Conv2D(f, 3, activation="relu"), layers.MaxPooling2D())]
    return keras.Sequential([keras.Input((32, 32, 3)), *blocks, layers.Flatten(), layers.Dense(10)])
