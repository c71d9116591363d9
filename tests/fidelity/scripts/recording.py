"""What the cases share: data, small nets, and what is kept of a trained model.

A case is a function that returns arrays by name. The first part of a name says what the array is:
`history`, `logs` (per batch), `evaluate`: losses and metrics; `weights`; `optimizer`: its variables; `predict`;
`count`: must be equal; `text`: printed lines.
"""

import functools
from collections.abc import Callable, Iterable

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras

Results = dict[str, np.ndarray]
Case = Callable[[], Results]

CASES: dict[str, Case] = {}
EPOCHS = 5
BATCH = 64


def case(function: Case) -> Case:
    """Adds a function to the cases, under its own name."""
    CASES[function.__name__] = function
    return function


@functools.cache
def _all_digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    # Their own order has the writers one after the other.
    order = np.random.RandomState(0).permutation(len(data.target))
    return (data.data / 16.0).astype("float32")[order], data.target[order]


def digits(num: int = 320, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 [num, 64] in [0, 1] and int64 [num]."""
    x, y = _all_digits()
    return x[start : start + num].copy(), y[start : start + num].copy()


def mlp(**hidden: object) -> keras.Sequential:
    """Returns 64 -> 24 -> 10, softmax; the arguments go to the hidden layer."""
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(24, activation="relu", name="hidden", **hidden),
            keras.layers.Dense(10, activation="softmax", name="classes"),
        ]
    )


def momentum() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def compiled(model: keras.Model | None = None, optimizer: object = None, **options: object) -> keras.Model:
    """Compiles for digits: cross-entropy, accuracy, SGD with momentum, unless told otherwise."""
    model = mlp() if model is None else model
    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options}
    model.compile(optimizer=momentum() if optimizer is None else optimizer, **options)
    return model


def fit(model: keras.Model, x: object, y: object = None, prefix: str = "", **options: object) -> Results:
    """Fits and returns what there is to compare afterwards."""
    history = model.fit(x, y, **{"epochs": EPOCHS, "batch_size": BATCH, "verbose": 0, **options})
    return {**from_history(history, prefix), **from_model(model, prefix)}


def from_history(history: keras.callbacks.History, prefix: str = "") -> Results:
    results = {f"history/{prefix}{name}": np.asarray(values) for name, values in history.history.items()}
    return {**results, f"count/{prefix}epochs": np.asarray(history.epoch)}


def from_model(model: keras.Model, prefix: str = "") -> Results:
    results = from_weights(model.get_weights(), prefix)
    return {**results, **from_optimizer(model.optimizer, prefix)} if model.optimizer else results


def from_weights(weights: Iterable[np.ndarray], prefix: str = "") -> Results:
    # A vocabulary, which Keras 2 has among the weights, is no number.
    numbers = (value for value in weights if np.asarray(value).dtype != object)
    return {f"weights/{prefix}{index}": np.array(value) for index, value in enumerate(numbers)}


def from_optimizer(optimizer: keras.optimizers.Optimizer, prefix: str = "") -> Results:
    values = {f"optimizer/{prefix}{index}": np.array(variable) for index, variable in enumerate(optimizer.variables)}
    return {**values, f"count/{prefix}iterations": np.array(optimizer.iterations)}
