"""Averaging weights: when it equals one machine, when it does not, and what the outer optimizer makes of it."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from nfdt.averaging import Averaging
from nfdt.devices import Devices
from nfdt.feed import Arrays
from nfdt.method import Batch
from nfdt.options import read_options
from nfdt.outer import OuterOptimizer, weighted_mean
from tests.helpers.programs import traced
from tests.helpers.thorough import some_of

FEATURES, WORKERS, ROWS = 5, 3, 4
X = np.random.default_rng(0).normal(size=(600, FEATURES)).astype("float32")
Y = (X @ np.arange(1, FEATURES + 1, dtype="float32"))[:, None]


def model(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(2)
    result = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    result.compile(optimizer, "mse")
    return result


def averaged(optimizer: Any, steps: int, **options: str) -> tuple[list[np.ndarray], int]:
    """Returns the weights after so many batches of each worker, and the optimizer's iterations."""
    script = model(optimizer)
    step = traced(script, (X, Y))
    method = Averaging(read_options({"update": "averaging", **options}), Devices(("/CPU:0",), ("/CPU:0",) * WORKERS))
    method.load(0, step.program)
    method.assign(0, step.values())
    feed = [Arrays([tf.constant(X), tf.constant(Y)])] * WORKERS
    for number in range(steps * WORKERS):
        rows = np.arange(number * ROWS, (number + 1) * ROWS) % len(X)
        method.give(Batch(0, feed, rows, ROWS))
    method.wait()
    assert method.steps() == steps * WORKERS
    values = method.read(0, range(len(step.variables)))
    weights = [values[step.index(w)] for w in script.weights]
    return weights, int(values[step.index(script.optimizer._iterations)])


def on_one_machine(optimizer: Any, steps: int) -> list[np.ndarray]:
    """Returns the weights after as many steps on all workers' rows together."""
    script = model(optimizer)
    rows = WORKERS * ROWS
    for number in range(steps):
        chosen = np.arange(number * rows, (number + 1) * rows) % len(X)
        script.train_on_batch(X[chosen], Y[chosen])
    return [np.array(w) for w in script.get_weights()]


def difference(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("momentum", some_of([0.0, 0.9], [0.9]))
def test_averaging_after_every_batch_is_one_step_on_all_rows(momentum: float) -> None:
    def optimizer() -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.01, momentum=momentum)

    weights, iterations = averaged(optimizer(), 50)
    assert difference(weights, on_one_machine(optimizer(), 50)) <= 1e-6 * 10
    # Every batch of the script counts as one of its steps.
    assert iterations == 50 * WORKERS


def test_it_is_not_with_adam_nor_with_rarer_averages() -> None:
    adam, _ = averaged(keras.optimizers.Adam(0.01), 50)
    assert difference(adam, on_one_machine(keras.optimizers.Adam(0.01), 50)) > 1e-3
    rare, _ = averaged(keras.optimizers.SGD(0.01), 50, **{"average-every": "5"})
    assert difference(rare, on_one_machine(keras.optimizers.SGD(0.01), 50)) > 1e-3


def test_diloco_moves_further_than_the_mean() -> None:
    plain, _ = averaged(keras.optimizers.SGD(0.01), 20, **{"average-every": "2"})
    diloco, _ = averaged(keras.optimizers.SGD(0.01), 20, **{"average-every": "2", "outer": "diloco"})
    assert difference(plain, diloco) > 1e-3
    assert all(np.isfinite(w).all() for w in diloco)


def test_outer_optimizers() -> None:
    old, mean = np.array([1.0, 2.0]), np.array([0.0, 2.5])
    assert np.array_equal(OuterOptimizer("averaging").update(old, mean), mean)
    nesterov = OuterOptimizer("diloco")
    # v = delta; w = old - 0.7 (delta + 0.9 v)
    assert nesterov.update(old, mean) == pytest.approx(old - 0.7 * 1.9 * (old - mean))
    # v = 0.9 delta + 0 in the second step, in which the workers did not move.
    still = nesterov.update(mean, mean)
    assert still == pytest.approx(mean - 0.7 * 0.9 * 0.9 * (old - mean))


def test_means_are_weighted_by_samples() -> None:
    values = [np.array([1.0, 4.0], np.float32), np.array([3.0, 0.0], np.float32)]
    assert weighted_mean(values, [3.0, 1.0]) == pytest.approx([1.5, 3.0])
    assert weighted_mean(values, [1.0, 1.0]).dtype == np.float32
